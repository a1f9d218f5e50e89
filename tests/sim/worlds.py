"""Small simulated worlds for tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from parrot_server.core import events as ev
from parrot_server.core.events import Action, Event
from parrot_server.core.model import CallState, CostModel, EngineSpec, StepKey
from parrot_server.core.settings import SchedulerSettings
from parrot_server.sim.workload import ProgramShape
from parrot_server.sim.world import Setup, World

SLOTS = EngineSpec(
    id="slots",
    kind="roofline",
    models=("any",),
    context_tokens=10**9,
    kv_tokens=10**9,
    max_running=4,
    can_pause=True,
    can_pin=True,
    cost=CostModel(prefill_token_s=1e-4, step_s=0.01, sequence_s=0.0, resident_token_s=0.0),
)


def world(engine: EngineSpec = SLOTS, **settings: object) -> World:
    """A world whose scheduler is validated after every event."""
    made: list[World] = []

    def validate(now_s: float, event: Event, actions: list[Action]) -> None:
        made[0].simulation.scheduler.validate()

    made.append(World(Setup(SchedulerSettings(**settings), engine), observe=validate))  # type: ignore[arg-type]
    return made[0]


def play(programs: Iterable[ProgramShape], engine: EngineSpec = SLOTS, **settings: object) -> World:
    """Run programs to their end."""
    made = world(engine, **settings)
    for program in programs:
        made.add(program)
    made.run()
    for record in made.programs.values():
        assert record.ended_s is not None, f"{record.shape.id} never ended"
        assert record.failure is None
    return made


class Waits:
    """Notes when each call was ready, and when it was sent for the first time."""

    def __init__(self) -> None:
        self.ready_s: dict[StepKey, float] = {}
        self.sent: list[tuple[float, StepKey]] = []

    def observe(self, now_s: float, event: Event, actions: list[Action]) -> None:
        """Look at an event and what it led to."""
        for action in actions:
            if isinstance(action, ev.CallChanged) and action.state is CallState.READY:
                self.ready_s.setdefault(action.key, now_s)
            elif isinstance(action, ev.Dispatch) and action.attempt == 1:
                self.sent.append((now_s, action.key))

    def most_overtaken_s(self) -> float:
        """By how much the youngest call that was sent before an older one that waited was younger than that."""
        worst = 0.0
        order = {key: place for place, (_, key) in enumerate(self.sent)}
        latest_s = 0.0
        for place in range(len(self.sent)):
            key = self.sent[place][1]
            worst = max(worst, latest_s - self.ready_s[key])
            latest_s = max(latest_s, self.ready_s[key])
        assert len(order) == len(self.sent)
        return worst


def small(engine: EngineSpec = SLOTS, **changes: object) -> EngineSpec:
    """The engine with some things otherwise."""
    return replace(engine, **changes)  # type: ignore[arg-type]
