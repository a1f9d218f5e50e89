"""In which order calls run: each policy says what is queued as one lot, and gives a lot its score (lower runs sooner).

A score is compared only with others of the same moment, so waiting needs no re-sorting: instead of lowering a score while it waits, the
time at which it began to wait raises it. So nobody starves: see `overtaken_at_most_s`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from parrot_server.core.model import Objective
from parrot_server.core.program import Step
from parrot_server.core.settings import SchedulerSettings
from parrot_server.errors import SetupError

LotKind = Literal["step", "group", "program"]
Score = Callable[[Step, SchedulerSettings, Mapping[str, float]], float]
TOP_LEVEL = 20.0  # no lot sinks deeper, however much service it had


@dataclass(frozen=True, slots=True)
class Policy:
    """An order of calls.

    Args:
        lot: what moves through the queue together.
        score: of a step, from the settings and, for clairvoyant policies, the true work of each program.
        deduces: uses objectives: expedites, bounds the batch, pauses and evicts for better calls.
        clairvoyant: knows what only a simulator can know.
    """

    name: str
    lot: LotKind
    score: Score
    deduces: bool = False
    clairvoyant: bool = False


def _fcfs(step: Step, settings: SchedulerSettings, work: Mapping[str, float]) -> float:
    return step.ready_s or 0.0


def _request_fair(step: Step, settings: SchedulerSettings, work: Mapping[str, float]) -> float:
    return step.attained_token_s


def _program_fcfs(step: Step, settings: SchedulerSettings, work: Mapping[str, float]) -> float:
    return step.program.seq


def _program_fair(step: Step, settings: SchedulerSettings, work: Mapping[str, float]) -> float:
    return step.program.virtual_token_s


def _least_attained(step: Step, settings: SchedulerSettings, work: Mapping[str, float]) -> float:
    return step.program.attained_token_s


def _shortest(step: Step, settings: SchedulerSettings, work: Mapping[str, float]) -> float:
    return work.get(step.program.id, math.inf)


def _longest(step: Step, settings: SchedulerSettings, work: Mapping[str, float]) -> float:
    return -work.get(step.program.id, 0.0)


def _feedback(step: Step, settings: SchedulerSettings, work: Mapping[str, float]) -> float:
    quanta = step.program.attained_token_s / settings.quantum_token_s
    return sum(quanta >= threshold * (1 - 1e-9) for threshold in settings.thresholds)


def demand_of(step: Step) -> float:
    """Service that a step answers for: the costliest path that led to it, and what its group will need, or has had if that is more.

    A group whose end can be seen is measured by that from its start. So its members stay together, and of two groups alike the second
    does not take the place of the first half way.
    """
    group = step.group
    own = max(group.expected_token_s, group.attained_token_s) if group else step.attained_token_s
    return step.inherited_token_s + own


def _parrot(step: Step, settings: SchedulerSettings, work: Mapping[str, float]) -> float:
    quanta = demand_of(step) / (settings.quantum_token_s * step.program.priority)
    level = min(math.floor(math.log2(1 + quanta)), TOP_LEVEL)
    if not step.waited_for:
        level += settings.throughput_levels
    elif step.objective is Objective.BATCH:
        level += settings.batch_levels
    return level + math.floor(step.queued_s / settings.age_s)


def overtaken_at_most_s(settings: SchedulerSettings) -> float:
    """The bound on waiting under `parrot`, among calls of one tenant and model.

    A call that is ready to run is sent before every call that becomes ready more than so many seconds after it: the levels that can
    lie between two calls, at `age_s` each, and the time for which batch calls may be held back beside better ones. (What a tenant
    must wait for others follows from its weight; what waits for a prefix that is being computed waits for no more than that.)
    """
    levels = TOP_LEVEL + max(settings.batch_levels, settings.throughput_levels)
    return settings.age_s * (levels + 1) + settings.patience_s


POLICIES: Mapping[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy("fcfs", "step", _fcfs),
        Policy("request-fair", "step", _request_fair),
        Policy("program-fcfs", "program", _program_fcfs),
        Policy("program-fair", "program", _program_fair),
        Policy("least-attained-service", "program", _least_attained),
        Policy("shortest-first", "program", _shortest, clairvoyant=True),
        Policy("longest-first", "program", _longest, clairvoyant=True),
        Policy("feedback", "program", _feedback),
        Policy("parrot", "group", _parrot, deduces=True),
    )
}


def policy_named(name: str) -> Policy:
    """Raises SetupError with the names there are."""
    try:
        return POLICIES[name]
    except KeyError:
        raise SetupError(f"there is no policy {name!r}; there are {', '.join(POLICIES)}") from None


def lot_id(policy: Policy, step: Step) -> tuple[str, ...]:
    """The name of the lot that a step is queued with."""
    if policy.lot == "program":
        return (step.program.id,)
    if policy.lot == "group" and step.group is not None:
        return (step.program.id, step.group.name)
    return (step.program.id, step.call.id, str(step.key.step))
