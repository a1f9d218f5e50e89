"""Bounds and numbers: what a program may have is counted once, wherever it comes from; no number that is let in breaks the scheduler."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parrot_server.core import events as ev
from parrot_server.core.model import Budget, CallSpec, Failure, Op, Ref, Transform, Usage, Value
from parrot_server.errors import Fault, Refused

from .programs import PAIR, Bench, call, value


def spread(items: int) -> Value:
    return Value("[]", 1, tuple(f"item {number}" for number in range(items)))


def test_elements_of_a_call_with_two_outputs_are_counted_once() -> None:
    bench = Bench(calls_per_program=8)
    pair = CallSpec("e", Op.GENERATE, (("x", Ref("list")),), (("a", "va"), ("b", "vb")), function=PAIR.id, each="x")
    bench.submit(pair, variables=(("list", spread(6)),))
    bench.run()
    for name in ("va", "vb"):
        outcome = bench.scheduler.variable("p", name).outcome
        assert isinstance(outcome, Value), outcome
        assert outcome.items
        assert len(outcome.items) == 6


def test_elements_count_against_the_budget_of_calls() -> None:
    bench = Bench()
    each = replace(call("e", "v", x=Ref("list")), each="x")
    bench.submit(each, variables=(("list", spread(20)),), budget=Budget(calls=5))
    bench.run()
    outcome = bench.scheduler.variable("p", "v").outcome
    assert isinstance(outcome, Failure)
    assert outcome.type == "budget_exceeded"
    assert not bench.dispatched


@pytest.mark.parametrize("link", ["after", "reads"])
def test_the_longest_path_is_counted_over_all_submits(link: str) -> None:
    bench = Bench(depth=10)
    bench.submit(call("c0", "v0", x=value("x")), closed=False)

    def add(number: int) -> None:
        reads = Ref(f"v{number - 1}") if link == "reads" else value("x")
        after = (f"c{number - 1}",) if link == "after" else ()
        more = replace(call(f"c{number}", f"v{number}", x=reads), after=after)
        bench.post(ev.CallsAdded("p", calls=(more,)))

    for number in range(1, 10):
        add(number)
    with pytest.raises(Refused, match="depth allows 10") as refused:
        add(10)
    assert refused.value.type == "limit_exceeded"


def test_a_producer_that_comes_late_deepens_all_that_is_below() -> None:
    bench = Bench(depth=10)
    below = [call("b0", "w0", x=Ref("open")), *(call(f"b{i}", f"w{i}", x=Ref(f"w{i - 1}")) for i in range(1, 5))]
    bench.submit(*below, variables=(("open", None),), closed=False)
    above = [call("a0", "v0", x=value("x")), *(call(f"a{i}", f"v{i}", x=Ref(f"v{i - 1}")) for i in range(1, 4))]
    bench.post(ev.CallsAdded("p", calls=(*above, call("a4", "open", x=Ref("v3")))))
    with pytest.raises(Refused, match="depth allows 10"):
        bench.post(ev.CallsAdded("p", calls=(call("more", "z", x=Ref("w4")),)))


@pytest.mark.parametrize("priority", [0.0, -1.0, float("nan"), float("inf"), 1e-320])
def test_a_priority_that_is_none_is_refused(priority: float) -> None:
    bench = Bench()
    with pytest.raises(Refused, match="priority"):
        bench.submit(call("a", "v", x=value("x")), priority=priority)
    bench.submit(call("a", "v", x=value("x")))
    with pytest.raises(Refused, match="priority"):
        bench.post(ev.CriteriaSet("p", priority=priority))


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf"), 1e-320])
def test_a_weight_that_is_none_is_refused(weight: float) -> None:
    with pytest.raises(Refused, match="weight"):
        Bench().post(ev.LimitsSet((("ann", weight),)))


def test_the_smallest_priority_and_long_service_are_still_a_score() -> None:
    bench = Bench(quantum_token_s=1e-3)
    bench.submit(call("a", "v", x=value("x", 10_000)), call("b", "w", x=Ref("v")), priority=1e-6)
    bench.finish(bench.dispatched[0], after_s=80_000)
    bench.finish(bench.dispatched[1])
    assert isinstance(bench.scheduler.variable("p", "w").outcome, Value)


def test_an_open_variable_may_be_filled_beside_calls_with_two_outputs() -> None:
    """The second output of a call reads the first: that is no cycle."""
    bench = Bench()
    pair = CallSpec("p", Op.GENERATE, (("x", Ref("open")),), (("a", "va"), ("b", "vb")), function=PAIR.id)
    bench.submit(pair, variables=(("open", None),), closed=False)
    bench.post(ev.CallsAdded("p", calls=(call("c", "open", x=value("x")),), close=True))
    bench.run()
    assert isinstance(bench.scheduler.variable("p", "vb").outcome, Value)


def test_a_program_that_someone_waits_for_is_not_forgotten_however_many_end() -> None:
    bench = Bench(retained_programs=2)
    for number in range(6):
        bench.submit(call("a", "v", x=value("x")), program=f"p{number}")
        bench.post(ev.Watched(f"p{number}", "v"))
    for number in range(6):
        bench.post(ev.Cancelled(f"p{number}"))
    assert len(bench.scheduler.programs()) == 6
    for number in range(6):
        bench.post(ev.Unwatched(f"p{number}", "v"))
    bench.submit(program="q", variables=(("x", value("x")),))
    assert bench.scheduler.programs() == ["p5", "q"]


def test_what_is_kept_of_ended_programs_is_bounded_by_its_size_too() -> None:
    bench = Bench(retained_bytes=4000)
    for number in range(50):
        bench.submit(program=f"p{number}", variables=(("x", value("x" * 1200, 300)),))
        assert len(bench.scheduler.programs()) <= 4
    assert "p49" in bench.scheduler.programs()
    bench.submit(program="large", variables=(("x", value("x" * 12000, 3000)),))
    assert bench.scheduler.programs() == ["large"]


def test_values_that_a_program_makes_of_its_values_are_bounded() -> None:
    """Each of many calls may copy a field of one large value."""
    bench = Bench(program_bytes=100_000)
    big = Value('{"a": "' + "x" * 40_000 + '"}', 10_000)
    copies = [
        CallSpec(f"c{i}", Op.TRANSFORM, (("x", Ref("big")),), (("y", f"v{i}"),), transform=Transform("field", "a"))
        for i in range(20)
    ]
    bench.submit(*copies, call("last", "w", x=Ref("v19")), variables=(("big", big),))
    bench.run()
    outcomes = [bench.scheduler.variable("p", f"v{i}").outcome for i in range(20)]
    assert sum(isinstance(outcome, Value) for outcome in outcomes) <= 2
    outcome = bench.scheduler.variable("p", "w").outcome
    assert isinstance(outcome, Failure)
    assert (outcome.type, "program_bytes" in outcome.message) == ("limit_exceeded", True)


def test_what_clients_send_to_one_program_is_bounded_over_all_submits() -> None:
    bench = Bench(program_bytes=1000)
    bench.submit(variables=(("a", value("x" * 400, 100)),), closed=False)
    bench.post(ev.CallsAdded("p", calls=(call("c", "v", x=value("y" * 400, 100)),)))
    with pytest.raises(Refused, match="program_bytes allows 1000") as refused:
        bench.post(ev.CallsAdded("p", calls=(call("d", "w", x=value("z" * 400, 100)),)))
    assert refused.value.type == "limit_exceeded"


def test_elements_of_a_list_count_with_the_values_of_their_program() -> None:
    bench = Bench(program_bytes=1000)
    each = replace(call("e", "v", x=Ref("list")), each="x")
    items = tuple("x" * 400 for _ in range(2))
    bench.submit(each, variables=(("list", Value("[]", 200, items)),))
    bench.run()
    outcome = bench.scheduler.variable("p", "v").outcome
    assert isinstance(outcome, Failure)
    assert outcome.type == "limit_exceeded"
    assert not bench.dispatched


def test_tokens_of_failed_attempts_are_spent_too() -> None:
    bench = Bench()
    bench.submit(call("a", "v", x=value("x")), call("b", "w", x=Ref("v")), budget=Budget(total_tokens=100))
    sent = bench.dispatched[0]
    bench.post(ev.Failed(sent.key, sent.attempt, Fault.ENGINE, "stream_broken", "gone", usage=Usage(60, 0, 30)))
    bench.post(ev.Tick(), after_s=1)
    bench.run()
    outcome = bench.scheduler.variable("p", "w").outcome
    assert isinstance(outcome, Failure)
    assert outcome.type == "budget_exceeded"


def test_elements_of_a_call_with_two_outputs_take_memory_once() -> None:
    bench = Bench(program_bytes=3_500)
    pair = CallSpec("e", Op.GENERATE, (("x", Ref("list")),), (("a", "va"), ("b", "vb")), function=PAIR.id, each="x")
    bench.submit(pair, variables=(("list", Value("x" * 1_000, 250, ("x" * 500, "y" * 500))),))
    bench.run()
    assert isinstance(bench.scheduler.variable("p", "vb").outcome, Value)


def test_a_set_value_and_a_fallback_that_are_too_large_are_refused_and_change_nothing() -> None:
    bench = Bench(program_bytes=1_000)
    bench.submit(call("c", "v", x=Ref("later")), variables=(("later", None),))
    with pytest.raises(Refused, match="program_bytes"):
        bench.post(ev.VariableSet("p", "later", value("x" * 5_000)))
    bench.post(ev.VariableSet("p", "later", value("x")))
    bench.run()
    assert isinstance(bench.scheduler.variable("p", "v").outcome, Value)
    with pytest.raises(Refused, match="program_bytes"):
        bench.submit(replace(call("c", "v", x=value("a")), fallback=(("y", value("z" * 5_000)),)), program="q")
