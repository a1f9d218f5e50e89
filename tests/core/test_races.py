"""Races: the first value wins, wherever it comes from; what a call falls back on is no value while a rival may still bring one."""

from __future__ import annotations

from dataclasses import replace

from parrot_server.core import events as ev
from parrot_server.core.model import CallState, Failure, Value
from parrot_server.errors import Fault

from .programs import Bench, call, value


def racing(name: str, fallback: str | None = None):  # type: ignore[no-untyped-def]
    given = (("y", value(fallback)),) if fallback else ()
    return replace(call(name, "v", x=value(name)), race="r", attempts=1, fallback=given)


def fail(bench: Bench, name: str) -> None:
    sent = next(sent for sent in bench.dispatched if sent.key.call == name)
    bench.post(ev.Failed(sent.key, sent.attempt, Fault.CALL, "broken", "broken"))


def test_a_rival_that_can_still_win_is_not_beaten_by_a_fallback() -> None:
    bench = Bench()
    bench.submit(racing("a", fallback="instead"), racing("b"))
    fail(bench, "a")
    assert bench.scheduler.variable("p", "v").outcome is None
    bench.finish(next(sent for sent in bench.dispatched if sent.key.call == "b"), "b won")
    outcome = bench.scheduler.variable("p", "v").outcome
    assert isinstance(outcome, Value)
    assert outcome.text == "b won"


def test_a_fallback_counts_when_all_have_failed_whoever_failed_last() -> None:
    for order in ("ab", "ba"):
        bench = Bench()
        bench.submit(racing("a", fallback="instead"), racing("b"))
        for name in order:
            fail(bench, name)
        outcome = bench.scheduler.variable("p", "v").outcome
        assert isinstance(outcome, Value), order
        assert outcome.text == "instead"


def test_without_fallbacks_the_last_failure_is_the_outcome() -> None:
    bench = Bench()
    bench.submit(racing("a"), racing("b"))
    fail(bench, "a")
    fail(bench, "b")
    outcome = bench.scheduler.variable("p", "v").outcome
    assert isinstance(outcome, Failure)
    assert outcome.call == "b"
    assert {node.state for node in bench.scheduler.graph("p").nodes} == {CallState.FAILED}
