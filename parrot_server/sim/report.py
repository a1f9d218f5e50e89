"""What a workload got of a policy, in terms of programs, with the per-call figures beside them so that the two can be seen to differ."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from parrot_server.core.model import CostModel
from parrot_server.sim.clients import ProgramRecord
from parrot_server.sim.world import World


@dataclass(frozen=True, slots=True)
class Summary:
    """Mean and percentiles of something."""

    mean: float
    p50: float
    p95: float
    p99: float


def summary(values: Iterable[float]) -> Summary:
    """Mean and percentiles; percentiles between two values lie on the line between them. No values: not a number."""
    ordered = sorted(values)
    if not ordered:
        return Summary(math.nan, math.nan, math.nan, math.nan)
    return Summary(sum(ordered) / len(ordered), *(percentile(ordered, share) for share in (0.5, 0.95, 0.99)))


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which a share of the ordered values lies."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


@dataclass(frozen=True, slots=True)
class ClassReport:
    """Programs of one kind. `share`: of all KV token-time that was received."""

    programs: int
    share: float
    completion_s: Summary
    slowdown: Summary


@dataclass(frozen=True, slots=True)
class Report:
    """One workload under one policy."""

    name: str
    programs: int
    calls: int
    makespan_s: float
    completion_s: Summary
    slowdown: Summary
    classes: dict[str, ClassReport]
    output_tokens_s: float
    cache_hit: float
    ttft_ms: Summary
    tpot_ms: Summary

    def row(self) -> dict[str, Any]:
        """As JSON: `completion_s` is the mean, beside it the percentiles of completion and slowdown, in all and by class."""
        row = asdict(self)
        row["completion_s"] = self.completion_s.mean
        row.update(asdict(self.completion_s))
        for name, of_class in self.classes.items():
            row["classes"][name]["completion_s"] = of_class.completion_s.mean
            row["classes"][name].update(asdict(of_class.completion_s))
        return row


def report(name: str, world: World) -> Report:
    """Sum up a world that has run to its end."""
    records = list(world.programs.values())
    cost = world.setup.engine.cost
    calls = [call for record in records for call in record.calls.values()]
    totals = world.engine.totals
    first_s = min((record.submitted_s for record in records), default=0.0)
    makespan_s = max((record.ended_s or 0.0 for record in records), default=0.0) - first_s
    all_service = sum(record.attained_token_s for record in records) or 1.0
    kinds = sorted({record.shape.kind for record in records})
    return Report(
        name=name,
        programs=len(records),
        calls=len(calls),
        makespan_s=makespan_s,
        completion_s=summary(record.completion_s for record in records),
        slowdown=summary(slowdown(record, cost) for record in records),
        classes={
            kind: _class_report([record for record in records if record.shape.kind == kind], cost, all_service)
            for kind in kinds
        },
        output_tokens_s=totals.output_tokens / makespan_s if makespan_s else 0.0,
        cache_hit=sum(call.cached_tokens for call in calls) / (sum(call.prompt_tokens for call in calls) or 1),
        ttft_ms=summary(1e3 * (call.first_token_s - call.ready_s) for call in calls),
        tpot_ms=summary(
            1e3 * (call.ended_s - call.first_token_s) / (call.output_tokens - 1)
            for call in calls
            if call.output_tokens > 1
        ),
    )


def _class_report(records: list[ProgramRecord], cost: CostModel, all_service: float) -> ClassReport:
    return ClassReport(
        programs=len(records),
        share=sum(record.attained_token_s for record in records) / all_service,
        completion_s=summary(record.completion_s for record in records),
        slowdown=summary(slowdown(record, cost) for record in records),
    )


def slowdown(record: ProgramRecord, cost: CostModel) -> float:
    """A program's completion time over what it needs alone."""
    return record.completion_s / record.shape.alone_s(cost)
