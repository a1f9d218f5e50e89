"""One workload under several policies, over several seeds."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from parrot_server.core.policy import policy_named
from parrot_server.sim.paired import Ratio, paired_ratio
from parrot_server.sim.presets import preset
from parrot_server.sim.report import Report, report
from parrot_server.sim.trace import read_trace
from parrot_server.sim.workload import ProgramShape
from parrot_server.sim.world import Observer, Setup, World


@dataclass(frozen=True, slots=True)
class Source:
    """Where a workload comes from: a preset's name, or a file."""

    preset: str = ""
    trace: Path | None = None

    def programs(self, seed: int) -> list[ProgramShape]:
        """The workload. Raises SetupError."""
        return preset(self.preset, seed) if self.trace is None else read_trace(self.trace)


@dataclass(frozen=True, slots=True)
class Comparison:
    """How one class of programs fared under a policy, against the first one: the ratio of mean completions, paired by seed."""

    kind: str
    policy: str
    against: str
    ratio: Ratio


def play(programs: Sequence[ProgramShape], policy: str, setup: Setup, observe: Observer | None = None) -> World:
    """Run a workload to its end."""
    policy_named(policy)
    setup = replace(setup, settings=replace(setup.settings, policy=policy))
    work = {program.id: program.work_s(setup.engine.cost) for program in programs}
    world = World(setup, work, observe)
    for program in programs:
        world.add(program)
    world.run()
    return world


def contest(source: Source, policies: Sequence[str], seeds: Sequence[int], setup: Setup) -> dict[str, list[Report]]:
    """A report for each policy and seed. The runs share the processors."""
    for policy in policies:
        policy_named(policy)
    source.programs(seeds[0])  # a fault in it is told here, not in a worker
    tasks = [(source, policy, seed, setup) for policy, seed in itertools.product(policies, seeds)]
    if len(tasks) == 1:
        reports = [_run(*tasks[0])]
    else:
        with ProcessPoolExecutor(min(len(tasks), os.cpu_count() or 1)) as pool:
            reports = list(pool.map(_run, *zip(*tasks, strict=True)))
    count = len(seeds)
    return {policy: reports[i * count : (i + 1) * count] for i, policy in enumerate(policies)}


def _run(source: Source, policy: str, seed: int, setup: Setup) -> Report:
    return report(policy, play(source.programs(seed), policy, setup))


def rows(reports: dict[str, list[Report]]) -> list[dict[str, Any]]:
    """A row for each policy; over several seeds the mean of each figure."""
    return [_mean([one.row() for one in of_policy]) for of_policy in reports.values()]


def _mean(dicts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    mean: dict[str, Any] = {}
    for name in dicts[0]:
        values = [one[name] for one in dicts if name in one]
        if isinstance(values[0], dict):
            mean[name] = _mean(values)
        else:
            mean[name] = values[0] if isinstance(values[0], str) or len(values) == 1 else fmean(values)
    return mean


def comparisons(reports: dict[str, list[Report]]) -> list[Comparison]:
    """The first policy against each other one, class by class."""
    first, *others = reports
    kinds = sorted(reports[first][0].classes)
    return [
        Comparison(kind, first, other, paired_ratio(_means(reports[first], kind), _means(reports[other], kind)))
        for kind in kinds
        for other in others
    ]


def _means(reports: Sequence[Report], kind: str) -> list[float]:
    return [one.classes[kind].completion_s.mean for one in reports]


def as_json(found: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Comparisons as JSON."""
    return [asdict(one) for one in found]
