"""A map-reduce with a straggler beside agents and chats that more than fill the engine: no policy that is told nothing beats ours."""

from __future__ import annotations

import math
from statistics import fmean

import pytest

from parrot_server.core.policy import POLICIES
from parrot_server.core.settings import SchedulerSettings
from parrot_server.sim.contest import Source, comparisons, contest, rows
from parrot_server.sim.machines import engine_named
from parrot_server.sim.paired import paired_ratio
from parrot_server.sim.report import Report, percentile, summary
from parrot_server.sim.world import Setup

SETUP = Setup(SchedulerSettings(), engine_named("h100"))
TOLD_NOTHING = [name for name, policy in POLICIES.items() if not policy.clairvoyant and name != "parrot"]


def mean_s(reports: list[Report], kind: str) -> float:
    return fmean(one.classes[kind].completion_s.mean for one in reports)


def check(reports: dict[str, list[Report]]) -> None:
    ours = {kind: mean_s(reports["parrot"], kind) for kind in ("map-reduce", "chat")}
    best = {kind: min(mean_s(reports[name], kind) for name in reports if name != "parrot") for kind in ours}
    assert ours["map-reduce"] <= 1.1 * best["map-reduce"]
    assert ours["chat"] <= 1.3 * best["chat"]
    for name in reports:
        beats = all(mean_s(reports[name], kind) < ours[kind] for kind in ours)
        assert name == "parrot" or not beats, f"{name} is better at both"


def test_one_seed_against_the_best_at_each() -> None:
    check(contest(Source("fan-out"), ["parrot", "fcfs", "least-attained-service"], [3], SETUP))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_ten_seeds_against_every_policy_that_is_told_nothing() -> None:
    reports = contest(Source("fan-out"), ["parrot", *TOLD_NOTHING], range(1, 11), SETUP)
    check(reports)
    for one in comparisons(reports):
        print(
            f"{one.kind:12} against {one.against:24} {one.ratio.mean:.3f}  ({one.ratio.low:.3f} to {one.ratio.high:.3f})"
        )
        if one.kind in ("chat", "map-reduce"):
            assert one.ratio.high < 1.1


def test_rows_of_several_seeds_are_means_and_comparisons_are_paired() -> None:
    reports = contest(Source("document-qa"), ["parrot", "fcfs"], [1, 2], SETUP)
    parrot, fcfs = rows(reports)
    assert (parrot["name"], fcfs["name"]) == ("parrot", "fcfs")
    means = [one.completion_s.mean for one in reports["parrot"]]
    assert parrot["completion_s"] == parrot["mean"] == pytest.approx(fmean(means))
    (one,) = comparisons(reports)
    assert (one.kind, one.policy, one.against) == ("document-qa", "parrot", "fcfs")
    assert one.ratio.low <= one.ratio.mean <= one.ratio.high


def test_ratios_are_of_pairs() -> None:
    ratio = paired_ratio([1.0, 20.0, 3.0], [2.0, 40.0, 6.0])
    assert (ratio.mean, ratio.low, ratio.high) == pytest.approx((0.5, 0.5, 0.5))
    assert paired_ratio([1.0], [2.0]).high == math.inf
    wide = paired_ratio([1.0, 4.0], [2.0, 2.0])
    assert wide.low < wide.mean < wide.high


def test_percentiles_lie_on_the_line_between_two_values() -> None:
    assert [percentile([1.0, 2.0, 3.0], share) for share in (0.0, 0.25, 0.5, 1.0)] == [1.0, 1.5, 2.0, 3.0]
    assert summary([5.0]).p99 == 5.0
    assert math.isnan(summary([]).mean)
