"""What falls due: the scheduler is always woken for the next of it, and what was set for a wish that has changed does nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parrot_server.core import events as ev
from parrot_server.core.model import Budget, Criterion, Objective, Tier, Value
from parrot_server.errors import Fault

from .programs import ENGINE, Bench, call, map_reduce, value


def wake_up(bench: Bench) -> bool:
    """Do as the runtime does: sleep until the latest moment that the scheduler asked for. False: it asked for none."""
    wakes = [action.time_s for action in bench.actions if isinstance(action, ev.WakeAt)]
    bench.actions = [action for action in bench.actions if not isinstance(action, ev.WakeAt)]
    if not wakes:
        return False
    bench.now_s = max(bench.now_s, wakes[-1])
    bench.post(ev.Tick())
    return True


@pytest.mark.parametrize("retry_after_s", [0.0, -1.0, 0.5])
def test_an_attempt_that_may_be_repeated_at_once_is_repeated(retry_after_s: float) -> None:
    """Also when the clock stands still: then the next moment is the one for which the last wake-up was."""
    bench = Bench(busy_attempts=5)
    bench.submit(call("a", "v", x=value("x")))
    for attempt in range(1, 4):
        sent = bench.dispatched[-1]
        assert sent.attempt == attempt
        bench.post(ev.Failed(sent.key, sent.attempt, Fault.BUSY, "busy", "busy", retry_after_s=retry_after_s))
        assert wake_up(bench), "nobody wakes the scheduler for the next attempt"
    bench.finish(bench.dispatched[-1])
    assert isinstance(bench.scheduler.variable("p", "v").outcome, Value)


@pytest.mark.parametrize("asked_s", [1e9, float("inf")])
def test_an_engine_that_asks_for_patience_without_end_is_asked_again(asked_s: float) -> None:
    bench = Bench()
    bench.submit(call("a", "v", x=value("x")))
    bench.post(ev.Failed(bench.dispatched[0].key, 1, Fault.BUSY, "busy", "busy", retry_after_s=asked_s))
    bench.post(ev.Tick(), after_s=150.0)
    bench.finish(bench.dispatched[1])
    assert isinstance(bench.scheduler.variable("p", "v").outcome, Value)


def test_a_budget_of_seconds_that_was_raised_ends_nothing_at_its_old_moment() -> None:
    bench = Bench()
    bench.submit(call("a", "v", x=value("x")), budget=Budget(wall_s=5.0))
    bench.post(ev.CriteriaSet("p", budget=Budget(wall_s=50.0)))
    bench.post(ev.Tick(), after_s=10.0)
    assert bench.scheduler.program("p").ended_s is None
    bench.post(ev.Tick(), after_s=41.0)
    assert bench.scheduler.program("p").ended_s is not None


def test_a_budget_keeps_what_a_change_leaves_out() -> None:
    bench = Bench()
    bench.submit(call("a", "v", x=value("x")), budget=Budget(total_tokens=10, wall_s=5.0))
    bench.post(ev.CriteriaSet("p", budget=Budget(calls=3)))
    bench.post(ev.Tick(), after_s=6.0)
    assert bench.scheduler.program("p").ended_s is not None


def test_a_deadline_that_was_moved_expedites_nothing_at_its_old_moment() -> None:
    bench = Bench()
    bench.submit(call("a", "v", x=value("x")), criteria=(("v", Criterion("deadline", 60.0)),))
    bench.post(ev.CriteriaSet("p", criteria=(("v", Criterion("deadline", 600.0)),)))
    bench.post(ev.Tick(), after_s=61.0)
    (node,) = bench.scheduler.graph("p").nodes
    assert node.objective is Objective.BATCH
    bench.post(ev.Tick(), after_s=530.0)
    bench.post(ev.Tick(), after_s=8.9)
    (node,) = bench.scheduler.graph("p").nodes
    assert node.objective is Objective.EXPEDITE


def test_timers_of_programs_that_are_forgotten_are_too() -> None:
    bench = Bench(retained_programs=2)
    for number in range(5000):
        bench.submit(program=f"p{number}", variables=(("x", value("given")),))
        assert len(bench.scheduler._state._timers) < 3000


def test_a_prefix_that_is_let_go_and_kept_again_is_looked_after_once() -> None:
    bench = Bench(replace(ENGINE, max_running=1, can_pin=True), warm_tokens=1, pin_s=10.0)
    for number in range(4):
        bench.submit(*map_reduce(2), program=f"p{number}")
        warm = bench.of(ev.Keep)[-1]
        assert isinstance(warm, ev.Keep)
        assert warm.tier is Tier.DEVICE
        bench.post(ev.Warmed(warm.prefix, "e0", 5), after_s=0.5)
        if number < 3:
            bench.post(ev.Cancelled(f"p{number}"))
            sent = bench.dispatched[-1]
            bench.post(ev.Aborted(sent.key, sent.attempt))
    before = len(bench.of(ev.Keep))
    for _ in range(100):
        bench.post(ev.Tick(), after_s=0.5)
    assert len(bench.of(ev.Keep)) - before == 10  # every five seconds
