"""Every figure of the reference scenario: reached by running the scheduler where the scenario says so, else from the cost model."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from statistics import fmean
from typing import Any

from parrot_server.core.settings import SchedulerSettings
from parrot_server.sim import chain, fan_out, mix
from parrot_server.sim.closed_forms import closed_forms
from parrot_server.sim.machines import engine_named
from parrot_server.sim.world import Setup


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: the value that we reach, the reference's own value and what it prints, and whether ours was simulated."""

    id: str
    statement: str
    unit: str
    value: float
    reference: float
    printed: float | None
    simulated: bool


@cache
def entries() -> list[dict[str, Any]]:
    """The reference figures as they are stored beside this file."""
    text = files("parrot_server.sim").joinpath("figures.json").read_text(encoding="utf-8")
    return list(json.loads(text))


def figures() -> list[Figure]:
    """All of them, in the order of the reference."""
    printed = {entry["id"]: entry["value"] if entry["printed"] is None else entry["printed"] for entry in entries()}
    computed = closed_forms(printed)
    simulated = simulate()
    return [
        Figure(
            id=entry["id"],
            statement=entry["statement"],
            unit=entry["unit"],
            value=simulated[entry["id"]] if entry["id"] in simulated else computed[entry["id"]](),
            reference=entry["value"],
            printed=entry["printed"],
            simulated=entry["id"] in simulated,
        )
        for entry in entries()
    ]


def simulate() -> dict[str, float]:
    """The figures that only a run of the scheduler gives; the runs are independent, and share the processors."""
    with ProcessPoolExecutor(min(len(RUNS), os.cpu_count() or 1)) as pool:
        return {name: value for values in pool.map(_run, RUNS) for name, value in values.items()}


def _run(name: str) -> dict[str, float]:
    return RUNS[name]()


def _map_reduce() -> dict[str, float]:
    setup = Setup(SchedulerSettings(), engine_named("h100-7b"))
    one_by_one = fan_out.run(fan_out.FanOut(), fan_out.ONE_BY_ONE, setup)
    deduced = fan_out.run(fan_out.FanOut(), "parrot", setup)
    return {
        "F21": one_by_one.completion_s,
        "F22": deduced.completion_s,
        "S01": one_by_one.maps_s,
        "S02": deduced.maps_s,
        "S03": deduced.reduce_s,
    }


def _chain() -> dict[str, float]:
    a, b, c = chain.three_ways(chain.Chain(), engine_named("h100-7b"))
    return {"S06": a.completion_s, "S07": b.completion_s, "S08": c.completion_s}


def _mean(policy: str) -> float:
    """Mean completion of the reference mix."""
    return fmean(record.completion_s for record in mix.run(mix.Mix(), policy).world.programs.values())


RUNS: Mapping[str, Callable[[], dict[str, float]]] = {  # the longest first
    "feedback": lambda: {"S12": _mean("feedback")},
    "program-fair": lambda: {"S11": _mean("program-fair")},
    "chain": _chain,
    "shortest-first": lambda: {"S09": _mean("shortest-first")},
    "longest-first": lambda: {"S10": _mean("longest-first")},
    "map-reduce": _map_reduce,
}
