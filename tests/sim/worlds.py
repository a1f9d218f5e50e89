"""Small simulated worlds for tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from parrot_server.core.events import Action, Event
from parrot_server.core.model import EngineSpec
from parrot_server.core.settings import SchedulerSettings
from parrot_server.sim.starvation import SLOTS
from parrot_server.sim.workload import ProgramShape
from parrot_server.sim.world import Setup, World


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


def small(engine: EngineSpec = SLOTS, **changes: object) -> EngineSpec:
    """The engine with some things otherwise."""
    return replace(engine, **changes)  # type: ignore[arg-type]
