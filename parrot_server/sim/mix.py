"""Chats and agents on a server that runs one call at a time: what order alone is worth. Times are in units of one output token.

Prompts cost nothing to read and are so long that resident token-time is proportional to units. A call that a policy may preempt comes
back after `quantum` units.
"""

from __future__ import annotations

from dataclasses import dataclass

from parrot_server.core.model import CostModel, EngineSpec
from parrot_server.core.settings import SchedulerSettings
from parrot_server.sim.workload import CallShape, ProgramShape
from parrot_server.sim.world import Setup, World

PROMPT_TOKENS = 1_000_000
PREEMPTS = {"request-fair", "program-fair", "least-attained-service", "feedback", "parrot"}


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
            own_units = units * (call + 1) // calls - units * call // calls
            before = () if self.at_once or not call else (f"call_{call - 1}",)
            shapes.append(
                CallShape(f"call_{call}", PROMPT_TOKENS, own_units, function=kind, reads=before, prefilled=True)
            )
        return ProgramShape(f"{kind}_{number}", tuple(shapes), kind=kind)

    def setup(self, policy: str) -> Setup:
        """The server that runs one call at a time."""
        engine = EngineSpec(
            id="server",
            kind="roofline",
            models=("any",),
            context_tokens=10**12,
            kv_tokens=10**12,
            max_running=1,
            can_pause=True,
            shares_prefixes=False,
            cost=CostModel(prefill_token_s=0.0, step_s=1.0, sequence_s=0.0, resident_token_s=0.0),
        )
        settings = SchedulerSettings(
            policy=policy,
            grant_tokens=self.quantum if policy in PREEMPTS else None,
            quantum_token_s=float(self.levels[0] * PROMPT_TOKENS),
            thresholds=tuple(level / self.levels[0] for level in self.levels),
            age_s=100.0 * self.levels[0],
            lifetime_s=float("inf"),
            calls_per_program=10**6,
            depth=10**6,
        )
        return Setup(settings, engine, progress_s=float("inf"))


def run(mix: Mix, policy: str) -> World:
    """All programs of the mix, served by a policy."""
    programs = mix.programs()
    setup = mix.setup(policy)
    work = {program.id: program.work_s(setup.engine.cost) for program in programs}
    world = World(setup, work)
    for program in programs:
        world.add(program)
    world.run()
    return world
