"""Chats and agents on a server that runs one call at a time: what order alone is worth. Times are in units of one output token.

Prompts cost nothing to read and are so long that resident token-time is proportional to units. A call that a policy may preempt comes
back after `quantum` units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import fmean

from parrot_server.core.model import CostModel, EngineSpec
from parrot_server.core.policy import policy_named
from parrot_server.core.settings import SchedulerSettings
from parrot_server.sim.workload import CallShape, ProgramShape
from parrot_server.sim.world import Setup, World

PROMPT_TOKENS = 1_000_000
RUNS_TO_END = {
    "fcfs",
    "program-fcfs",
    "shortest-first",
    "longest-first",
}  # they take nothing back from a call that runs
ROUNDS = 5  # so many units a request, and the shares are read
SERVER = EngineSpec(
    id="one-at-a-time",
    kind="roofline",
    models=("any",),
    context_tokens=10**12,
    kv_tokens=10**12,
    max_running=1,
    can_pause=True,
    shares_prefixes=False,
    cost=CostModel(prefill_token_s=0.0, step_s=1.0, sequence_s=0.0, resident_token_s=0.0),
)


@dataclass(frozen=True, slots=True)
class Mix:
    """Chats and agents that all come at once, agents first.

    Args:
        chats, chat_calls, chat_units: how many, calls of each, and units of each in all.
        agents, agent_calls, agent_units: the same.
        at_once: the calls of a program do not wait for each other: all stand in the queue at once.
        quantum: a running call is up for reordering after so many units.
        levels: a program sinks a level when it has received so many units.
    """

    chats: int = 100
    chat_calls: int = 3
    chat_units: int = 200
    agents: int = 10
    agent_calls: int = 200
    agent_units: int = 16_000
    at_once: bool = False
    quantum: int = 1
    levels: tuple[int, ...] = (200,)

    def programs(self) -> list[ProgramShape]:
        """Agents, then chats."""
        agents = [self._program("agent", n, self.agent_calls, self.agent_units) for n in range(self.agents)]
        return agents + [self._program("chat", n, self.chat_calls, self.chat_units) for n in range(self.chats)]

    def _program(self, kind: str, number: int, calls: int, units: int) -> ProgramShape:
        shapes = []
        for call in range(calls):
            own = units * (call + 1) // calls - units * call // calls
            before = () if self.at_once or not call else (f"call_{call - 1}",)
            shapes.append(CallShape(f"call_{call}", PROMPT_TOKENS, own, function=kind, reads=before, prefilled=True))
        return ProgramShape(f"{kind}_{number}", tuple(shapes), kind=kind)

    def setup(self, policy: str, engine: EngineSpec) -> Setup:
        """The server under a policy. At this scale waiting counts for little: a level in a hundred first levels."""
        settings = SchedulerSettings(
            policy=policy_named(policy).name,
            grant_tokens=None if policy in RUNS_TO_END else self.quantum,
            quantum_token_s=float(self.levels[0] * PROMPT_TOKENS),
            thresholds=tuple(level / self.levels[0] for level in self.levels),
            age_s=100.0 * self.levels[0],
            lifetime_s=math.inf,
            calls_per_program=10**6,
            depth=10**6,
            retain_s=math.inf,
            retained_programs=10**6,
        )
        return Setup(settings, engine, progress_s=math.inf)


@dataclass(frozen=True, slots=True)
class MixRun:
    """A mix that has run. `agent_advantage`: an agent's service over a chat's, while both were there."""

    world: World
    agent_advantage: float


def run(mix: Mix, policy: str, engine: EngineSpec | None = None) -> MixRun:
    """All programs of the mix, served by a policy; on a real engine each prompt is read, and has a thousand tokens."""
    programs = mix.programs()
    setup = mix.setup(policy, SERVER)
    if engine is not None:
        programs = [_real(program) for program in programs]
        setup = Setup(SchedulerSettings(policy=policy), engine)
    world = World(setup, {program.id: program.work_s(setup.engine.cost) for program in programs})
    for program in programs:
        world.add(program)
    shares: dict[str, float] = {}
    requests = mix.chats * mix.chat_calls + mix.agents * mix.agent_calls
    world.simulation.at(float(ROUNDS * requests), lambda: shares.update(_services(world)))
    world.run()
    if not shares.get("chat") or not shares.get("agent"):
        return MixRun(world, math.nan)
    return MixRun(world, shares["agent"] / shares["chat"])


def _real(program: ProgramShape) -> ProgramShape:
    calls = tuple(replace(call, own_tokens=1000, prefilled=False) for call in program.calls)
    return ProgramShape(program.id, calls, kind=program.kind)


def _services(world: World) -> dict[str, float]:
    """What a program of each kind has received by now, on average."""
    received: dict[str, list[float]] = {}
    for record in world.programs.values():
        service = world.simulation.scheduler.program(record.shape.id).attained_token_s
        received.setdefault(record.shape.kind, []).append(service)
    return {kind: fmean(services) for kind, services in received.items()}
