"""Engines that differ, engines that come back, and what their word is worth."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parrot_server.core import events as ev
from parrot_server.core.model import CallSpec, EngineSpec, Op, Sampling, Tier, Value
from parrot_server.errors import Fault

from .programs import ENGINE, FUNCTIONS, PAIR, SHORT, Bench, call, function, value

OTHER = replace(ENGINE, id="e1")


def pair(name: str) -> CallSpec:
    outputs = (("a", f"{name}-a"), ("b", f"{name}-b"))
    return CallSpec(name, Op.GENERATE, (("x", value(name)),), outputs, function=PAIR.id)


def test_a_probe_that_is_asked_for_patience_does_not_close_the_engine_for_ever() -> None:
    bench = Bench(breaker_failures=1, breaker_s=5.0)
    bench.submit(call("a", "v", x=value("x")))
    first = bench.dispatched[0]
    bench.post(ev.Failed(first.key, 1, Fault.ENGINE, "broken", "broken"))
    for attempt in range(2, 5):
        for _ in range(20):
            bench.post(ev.Tick(), after_s=1.0)
        sent = bench.dispatched[-1]
        assert sent.attempt == attempt, "nothing is sent to the engine any more"
        bench.post(ev.Failed(sent.key, sent.attempt, Fault.BUSY, "busy", "busy"))
    bench.post(ev.Tick(), after_s=20.0)
    bench.finish(bench.dispatched[-1])
    assert isinstance(bench.scheduler.variable("p", "v").outcome, Value)


CHOICES = function("Say {{x}} {{y}}", y=replace(SHORT, choices=("a", "b")))
SCHEMA = function("Write {{x}} {{y}}", y=Sampling(max_tokens=16, schema='{"type":"object"}'))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("made", "ability"),
    [
        (pair("p"), "continues"),
        (call("c", "v", x=value("x")), "chat"),
        (call("c", "v", CHOICES, x=value("x")), "schemas"),
        (call("c", "v", SCHEMA, x=value("x")), "schemas"),
    ],
    ids=["continues", "chat", "choices", "schema"],
)
def test_of_engines_that_differ_one_that_can_is_chosen(made: CallSpec, ability: str, first: bool) -> None:
    """Though the other one is the cheaper, or stands first."""
    able = {"continues": True, "chat": True, "schemas": True}
    specs: list[EngineSpec] = [
        replace(ENGINE, **able | {ability: first}),
        replace(OTHER, **able | {ability: not first}),
    ]
    bench = Bench(*specs)
    for number in range(4):
        event = ev.Submitted(f"p{number}", functions=(*FUNCTIONS, CHOICES, SCHEMA), calls=(made,))
        bench.post(event)
    bench.run()
    sent = {sent.engine for sent in bench.dispatched if ability != "continues" or sent.key.step == 1}
    assert sent == {"e0" if first else "e1"}


def test_a_server_that_starts_again_blames_no_call() -> None:
    bench = Bench(attempts=2)
    bench.submit(call("a", "v", x=value("x")))
    for _ in range(5):
        bench.post(ev.Recovered(1))
        bench.post(ev.EngineUp(ENGINE))
    bench.finish(bench.dispatched[-1])
    assert isinstance(bench.scheduler.variable("p", "v").outcome, Value)


def test_an_engine_that_has_let_go_as_it_was_asked_is_not_taken_to_have_lost_what_was_asked_for_since() -> None:
    bench = Bench(replace(ENGINE, can_pin=True), warm_tokens=1)
    shared = [call(f"a{i}", f"v{i}", x=value(f"{i}")) for i in range(2)]
    bench.submit(*shared)
    keep = next(action for action in bench.actions if isinstance(action, ev.Keep))
    bench.post(ev.Warmed(keep.prefix, "e0", 8))
    bench.run()
    assert [a.tier for a in bench.actions if isinstance(a, ev.Keep)][-1] is Tier.NONE
    bench.submit(*shared, program="q")
    assert bench.scheduler.engines()[0].pinned_prefixes == 1
    bench.post(ev.Warmed(keep.prefix, "e0", 8))
    assert bench.scheduler.engines()[0].pinned_prefixes == 1


def test_the_moments_of_a_step_are_those_of_its_last_attempt() -> None:
    bench = Bench()
    bench.submit(call("a", "v", x=value("x")))
    first = bench.dispatched[0]
    bench.post(ev.Started(first.key, 1), after_s=1.0)
    bench.post(ev.Progress("e0", ((first.key, 1, 3),)), after_s=1.0)
    bench.post(ev.Failed(first.key, 1, Fault.ENGINE, "gone", "gone"), after_s=1.0)
    bench.post(ev.Tick(), after_s=60.0)
    assert bench.dispatched[-1].attempt == 2
    timing = bench.scheduler.variable("p", "v").timing
    assert timing is not None
    assert (timing.started_s, timing.first_token_s) == (None, None)
    bench.finish(bench.dispatched[-1])
    timing = bench.scheduler.variable("p", "v").timing
    assert timing is not None
    moments = [timing.ready_s, timing.sent_s, timing.started_s, timing.first_token_s, timing.ended_s]
    assert moments == sorted(moments, key=float)
