"""Tenants of different weights who all want more than there is: what each receives of the token-time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean

from parrot_server.core.events import LimitsSet
from parrot_server.core.model import EngineSpec
from parrot_server.core.settings import SchedulerSettings
from parrot_server.sim.programs import conversation, map_reduce
from parrot_server.sim.workload import ProgramShape
from parrot_server.sim.world import Setup, World

KINDS = ("chat", "map-reduce", "agent")


@dataclass(frozen=True, slots=True)
class TenantShare:
    """What one tenant received while all had more to run. `completion_s`: mean of its programs that ended; of none, the whole time."""

    name: str
    weight: float
    share: float
    wanted: float
    programs_ended: int
    completion_s: float


def run(
    weights: Sequence[float],
    engine: EngineSpec,
    policy: str,
    seconds: float,
    seed: int = 1,
    kinds: Sequence[str] = KINDS,
) -> list[TenantShare]:
    """Tenants with chats, map-reduces and agents by turns, each with more than the engine could run in so many seconds."""
    rng = Random(seed)
    world = World(Setup(SchedulerSettings(policy=policy, retained_programs=10**6), engine))
    world.simulation.post(LimitsSet(tuple((f"tenant_{i}", weight) for i, weight in enumerate(weights))))
    for i in range(len(weights)):
        for number in range(500):
            world.add(_program(kinds[i % len(kinds)], f"tenant_{i} {number}", f"tenant_{i}", rng))
    world.simulation.at(seconds, world.simulation.stop)
    world.run()
    scheduler = world.simulation.scheduler
    views = [scheduler.program(program) for program in scheduler.programs()]
    services = [
        sum(view.attained_token_s for view in views if view.tenant == f"tenant_{i}") for i in range(len(weights))
    ]
    rows = []
    for i, weight in enumerate(weights):
        records = [record for record in world.programs.values() if record.shape.tenant == f"tenant_{i}"]
        ended = [record.completion_s for record in records if record.ended_s is not None]
        share, wanted = services[i] / sum(services), weight / sum(weights)
        mean_s = fmean(ended) if ended else seconds
        mean_s = fmean(ended) if ended else seconds
        rows.append(TenantShare(f"tenant_{i}", weight, share, wanted, len(ended), mean_s))
    return rows


def _program(kind: str, name: str, tenant: str, rng: Random) -> ProgramShape:
    if kind == "map-reduce":
        return map_reduce(name, 6, 100, rng.randint(20, 60), 10, 20, tenant=tenant)
    turns = [(100, rng.randint(20, 60), 0.0) for _ in range(30 if kind == "agent" else 3)]
    return conversation(name, turns, kind=kind, tenant=tenant)
