"""Prompts that repeat, in a cache that is too small for everything: least recently used, against pins by reference count.

Programs declare all their calls at once; each call waits for a tool, and all calls of a program begin with the same text. Prompts that
nobody will use again flood the cache between them. It is made just so small that LRU misses a given share of look-ups; pins know which
beginnings calls still wait for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from random import Random

from parrot_server.core.model import EngineSpec
from parrot_server.core.settings import SchedulerSettings
from parrot_server.sim.workload import CallShape, ProgramShape
from parrot_server.sim.world import Setup, World

OUTPUT_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Repeats:
    """What is repeated, and what floods.

    Args:
        repeat: share of all tokens of the programs that were sent before.
        miss: share of look-ups that LRU is to miss.
        programs, calls: how many, and calls of each.
        prompt_tokens: of each call.
        flood_tokens: of a prompt that is used once; one comes with each call, on average.
        gap_s: mean time between calls.
    """

    repeat: float
    miss: float = 0.2
    programs: int = 6
    calls: int = 150
    prompt_tokens: int = 10_000
    flood_tokens: int = 10_000
    gap_s: float = 2.0
    seed: int = 1

    @property
    def shared_tokens(self) -> int:
        """The beginning that all calls of a program have: all but its first use are repeats."""
        return round(self.repeat * self.prompt_tokens * self.calls / (self.calls - 1))

    @property
    def cache_tokens(self) -> int:
        """How much fits. LRU keeps what was used within some time; a beginning misses if no call of its program came within it.

        Source: Che's approximation of LRU, "Hierarchical Web caching systems" (IEEE JSAC 2002, section 3).
        """
        window_calls = self.programs * math.log(1 / self.miss)
        passing_tokens = self.prompt_tokens - self.shared_tokens + self.flood_tokens + 2 * OUTPUT_TOKENS
        return round(self.programs * (1 - self.miss) * self.shared_tokens + window_calls * passing_tokens)

    def workload(self) -> list[ProgramShape]:
        """The programs, and the flood between their calls."""
        rng, total = Random(self.seed), self.programs * self.calls
        own = self.prompt_tokens - self.shared_tokens
        span_s = total * self.gap_s
        programs = []
        for number in range(self.programs):
            heads = ((f"text {number}", self.shared_tokens),)
            shapes = [
                CallShape(
                    f"call_{n}", own, OUTPUT_TOKENS, function="repeat", heads=heads, stall_s=rng.uniform(0, span_s)
                )
                for n in range(self.calls)
            ]
            programs.append(ProgramShape(f"program_{number}", tuple(shapes), kind="repeat"))
        for number, at_s in enumerate(sorted(rng.uniform(0, span_s) for _ in range(total))):
            once = CallShape("call", self.flood_tokens, OUTPUT_TOKENS, function="flood")
            programs.append(ProgramShape(f"flood_{number}", (once,), kind="flood", at_s=at_s))
        return programs


@dataclass(frozen=True, slots=True)
class RepeatRun:
    """What a cache made of it. `gain`: tokens sent over tokens computed; `ceiling`: if nothing were ever computed twice."""

    name: str
    repeat: float
    gain: float
    ceiling: float
    missed: float
    cache_tokens: int
    completion_s: float


def run(repeats: Repeats, engine: EngineSpec, pins: bool) -> RepeatRun:
    """The workload on an engine with so small a cache, with pins or without."""
    engine = replace(engine, kv_tokens=repeats.cache_tokens, can_pin=pins)
    settings = SchedulerSettings(lifetime_s=math.inf, pinned_share=0.8)
    world = World(Setup(settings, engine, progress_s=math.inf))
    for program in repeats.workload():
        world.add(program)
    world.run()
    records = [record for record in world.programs.values() if record.shape.kind == "repeat"]
    calls = [call for record in records for call in record.calls.values()]
    everything = [call for record in world.programs.values() for call in record.calls.values()]
    warmed = world.engine.totals.computed_tokens - sum(call.prompt_tokens - call.cached_tokens for call in everything)
    sent = sum(call.prompt_tokens for call in calls)
    computed = sum(call.prompt_tokens - call.cached_tokens for call in calls) + warmed
    missed = sum(call.cached_tokens < repeats.shared_tokens for call in calls) - repeats.programs
    return RepeatRun(
        name="pins" if pins else "lru",
        repeat=repeats.repeat,
        gain=sent / computed,
        ceiling=1 / (1 - repeats.repeat),
        missed=max(0, missed) / (len(calls) - repeats.programs),
        cache_tokens=repeats.cache_tokens,
        completion_s=max(record.completion_s for record in records),
    )
