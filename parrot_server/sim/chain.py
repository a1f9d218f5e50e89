"""A chain of calls under ambient load, three ways: A a client loop without prefix cache, B with one, C the declared program.

The card is full of decoders that nobody waits for. Each keeps about 4,096 tokens resident for ever: it decodes a short answer to a prompt
that costs nothing to read, then the next one. While an expedited chain runs they pause, and keep their KV.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from parrot_server.core.cost import step_s
from parrot_server.core.model import EngineSpec
from parrot_server.core.settings import SchedulerSettings
from parrot_server.sim.workload import CallShape, ProgramShape
from parrot_server.sim.world import Setup, World

AMBIENT_TOKENS = 4096
AMBIENT_ANSWER_TOKENS = 64
WARM_UP_S = 1.0


@dataclass(frozen=True, slots=True)
class Chain:
    """A chain under load.

    Args:
        steps: how many calls.
        first_tokens: the first prompt.
        growth_tokens: by how much each prompt is longer than the one before: its answer (at the least), and what came of it.
        output_tokens: of each answer.
        rtt_s, queue_s: the way to the client and back, and waiting in line again.
        ambient_tpot_s: time per token that the ambient load makes; it is met as far as memory allows. 0: no load. The chain's own KV
            has room beside it.
    """

    steps: int = 20
    first_tokens: int = 2000
    growth_tokens: int = 300
    output_tokens: int = 80
    rtt_s: float = 0.05
    queue_s: float = 0.2
    ambient_tpot_s: float = 0.0226

    def program(self) -> ProgramShape:
        """The chain as a program."""
        output, calls = self.output_tokens, []
        for step in range(self.steps):
            own = max(0, self.growth_tokens - output) if step else self.first_tokens
            extends = f"step_{step - 1}" if step else ""
            calls.append(CallShape(f"step_{step}", own, output, function="chain", extends=extends))
        return ProgramShape("chain", tuple(calls), kind="chain", at_s=WARM_UP_S)

    @property
    def longest_tokens(self) -> int:
        """Its last prompt and answer."""
        return self.first_tokens + max(self.growth_tokens, self.output_tokens) * (self.steps - 1) + self.output_tokens

    def ambient(self, engine: EngineSpec) -> list[int]:
        """How many tokens each ambient decoder keeps resident, on average."""
        mean = (self.first_tokens + self.longest_tokens) / 2
        wanted = (self.ambient_tpot_s - step_s(engine.cost, 0, mean)) / engine.cost.resident_token_s
        room = engine.kv_tokens * AMBIENT_TOKENS / (AMBIENT_TOKENS + AMBIENT_ANSWER_TOKENS)
        total = max(0.0, min(wanted, room))
        count = round(total / AMBIENT_TOKENS)
        return [int(total / count)] * count if count else []


@dataclass(frozen=True, slots=True)
class ChainRun:
    """What a chain took: `prefill_s` and `decode_s` in the engine, `round_trips_s` at the client, the rest waiting."""

    name: str
    completion_s: float
    prefill_s: float
    decode_s: float
    round_trips_s: float
    queued_s: float


def three_ways(chain: Chain, engine: EngineSpec, policies: tuple[str, ...] = ("parrot",)) -> list[ChainRun]:
    """The chain as A, B and C; C once a policy."""
    fcfs = SchedulerSettings(policy="fcfs")
    loop = Setup(fcfs, engine, progress_s=1.0, declares=False, rtt_s=chain.rtt_s, queue_s=chain.queue_s)
    uncached = replace(loop, engine=replace(engine, shares_prefixes=False, can_pin=False))
    runs = [run("A", chain, uncached), run("B", chain, loop)]
    for policy in policies:
        settings = SchedulerSettings(policy=policy, corunner_slowdown=1.0)
        name = "C" if len(policies) == 1 else f"C {policy}"
        runs.append(run(name, chain, Setup(settings, engine, progress_s=1.0)))
    return runs


def run(name: str, chain: Chain, setup: Setup) -> ChainRun:
    """One chain under its ambient load."""
    engine = setup.engine
    world = World(replace(setup, engine=replace(engine, kv_tokens=engine.kv_tokens + 2 * chain.longest_tokens)))
    for number, tokens in enumerate(chain.ambient(setup.engine)):
        _Decoder(world, number, tokens).begin()
    world.add(chain.program(), lambda _: world.simulation.stop())
    world.run()
    record = world.programs["chain"]
    calls = record.calls.values()
    return ChainRun(
        name,
        record.completion_s,
        prefill_s=sum(call.prefilled_s - call.started_s for call in calls),
        decode_s=sum(call.ended_s - call.prefilled_s for call in calls),
        round_trips_s=record.edges_s,
        queued_s=sum(call.started_s - call.ready_s for call in calls),
    )


class _Decoder:
    """One ambient decoder: an endless row of calls, begun at different places of their answers."""

    def __init__(self, world: World, number: int, tokens: int) -> None:
        self._world, self._number = world, number
        self._prompt_tokens = tokens - AMBIENT_ANSWER_TOKENS // 2
        self._count = 0

    def begin(self) -> None:
        self._next(1 + self._number % AMBIENT_ANSWER_TOKENS)

    def _next(self, output_tokens: int) -> None:
        self._count += 1
        call = CallShape(
            "answer",
            0,
            output_tokens,
            max_tokens=AMBIENT_ANSWER_TOKENS,
            function="ambient",
            heads=((f"ambient {self._number}", self._prompt_tokens),),
            criterion="throughput",
            prefilled=True,
        )
        program = ProgramShape(f"ambient {self._number}.{self._count}", (call,), kind="ambient")
        self._world.add(program, lambda _: self._next(AMBIENT_ANSWER_TOKENS), declares=True)
