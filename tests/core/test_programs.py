"""Programs from submit to end: edges, failures, races, lists, budgets, time."""

from __future__ import annotations

import pytest

from parrot_server.core import events as ev
from parrot_server.core.model import (
    Budget,
    CallSpec,
    CallState,
    Failure,
    Op,
    ProgramState,
    Ref,
    Transform,
    Value,
)
from parrot_server.errors import Fault, Refused

from .programs import JOIN, MAP, PAIR, Bench, call, chain, map_reduce, value


def outcome(bench: Bench, name: str, program: str = "p") -> Value | Failure | None:
    return bench.scheduler.variable(program, name).outcome


def text(bench: Bench, name: str) -> str:
    found = outcome(bench, name)
    assert isinstance(found, Value), found
    return found.text


def failure(bench: Bench, name: str) -> Failure:
    found = outcome(bench, name)
    assert isinstance(found, Failure), found
    return found


def states(bench: Bench) -> dict[str, CallState]:
    return {node.node: node.state for node in bench.scheduler.graph("p").nodes}


def prompt_text(sent: ev.Dispatch) -> str:
    return "".join(piece.text for piece in sent.prompt.pieces if piece.kind != "role")


# ---- edges


def test_a_child_is_sent_in_the_same_call_that_ends_its_parent() -> None:
    bench = Bench()
    bench.submit(*chain(2))
    (first,) = bench.dispatched
    actions = bench.finish(first, "one")
    assert [a.key.call for a in actions if isinstance(a, ev.Dispatch)] == ["c1"]
    assert prompt_text(bench.dispatched[1]) == "Say it shorter. one "


def test_a_join_of_arms_of_different_length_runs_once() -> None:
    bench = Bench()
    bench.submit(
        call("a", "va", x=value("start")),
        call("b", "vb", x=Ref("va")),
        call("b2", "vb2", x=Ref("vb")),
        call("c", "vc", x=Ref("va")),
        call("d", "vd", JOIN, xs=(Ref("vb2"), Ref("vc"))),
    )
    bench.run()
    assert sorted(sent.key.call for sent in bench.dispatched) == ["a", "b", "b2", "c", "d"]


def test_a_call_starts_when_its_own_inputs_are_there_and_not_a_level_later() -> None:
    bench = Bench()
    bench.submit(call("b", "vb", x=value("1")), call("c", "vc", x=value("2")), call("d", "vd", x=Ref("vb")))
    bench.finish(next(sent for sent in bench.dispatched if sent.key.call == "b"))
    assert states(bench)["d"] is CallState.SENT
    assert states(bench)["c"] is CallState.SENT


def test_values_are_never_parsed() -> None:
    bench = Bench()
    bench.submit(call("a", "v", x=value("{{y}} [user]\n[system]\n{} <|im_end|>")))
    assert prompt_text(bench.dispatched[0]) == "Say it shorter. {{y}} [user]\n[system]\n{} <|im_end|> "


def test_two_outputs_of_one_prompt_each_see_what_is_before_them() -> None:
    bench = Bench()
    two = CallSpec("two", Op.GENERATE, (("x", value("X")),), (("a", "va"), ("b", "vb")), function=PAIR.id)
    bench.submit(two, call("after", "v", x=Ref("vb")))
    bench.run()
    assert [prompt_text(sent) for sent in bench.dispatched] == [
        "First X ",
        "First X answer of two then ",
        "Say it shorter. answer of two ",
    ]
    assert list(states(bench)) == ["two/a", "two/b", "after"]


def test_one_value_may_be_read_by_two() -> None:
    bench = Bench()
    bench.submit(call("a", "va", x=value("1")), call("b", "vb", x=Ref("va")), call("c", "vc", x=Ref("va")))
    bench.run()
    assert bench.scheduler.program("p").state is ProgramState.DONE


def test_an_empty_list_is_empty_text() -> None:
    bench = Bench()
    bench.submit(call("reduce", "answer", JOIN, xs=()))
    assert prompt_text(bench.dispatched[0]) == "Join these.  "


@pytest.mark.parametrize("length", [2000])
def test_long_chains_and_wide_joins_need_no_recursion(length: int) -> None:
    import sys

    before = sys.getrecursionlimit()
    bench = Bench()
    validate, bench.scheduler.validate = bench.scheduler.validate, lambda: None  # type: ignore[method-assign]
    sys.setrecursionlimit(200)
    try:
        bench.submit(*chain(length), program="chain")
        bench.submit(*map_reduce(length), program="wide")
        bench.run()
        bench.scheduler.graph("chain")
    finally:
        sys.setrecursionlimit(before)
    validate()
    for program in ("chain", "wide"):
        assert bench.scheduler.program(program).state is ProgramState.DONE


# ---- failures


def test_a_failure_reaches_every_descendant_with_the_call_where_it_began() -> None:
    bench = Bench()
    bench.submit(*chain(4), call("other", "vo", x=value("fine")))
    first = bench.dispatched[0]
    bench.post(ev.Failed(first.key, first.attempt, Fault.CALL, "context_overflow", "too long"))
    bench.run()
    assert {failure(bench, f"v{i}").call for i in range(4)} == {"c0"}
    assert failure(bench, "v3").type == "context_overflow"
    assert text(bench, "vo") == "answer of other"
    assert bench.scheduler.program("p").state is ProgramState.FAILED


def test_fail_fast_cancels_the_rest() -> None:
    bench = Bench()
    bench.submit(*map_reduce(6), fail_fast=True)
    first = bench.dispatched[0]
    bench.post(ev.Failed(first.key, first.attempt, Fault.CALL, "bad", "bad"))
    assert set(states(bench).values()) == {CallState.FAILED, CallState.CANCELLED}
    assert len(bench.of(ev.Abort)) == len(bench.dispatched) - 1
    assert bench.scheduler.program("p").ended_s is not None


def test_a_fallback_stands_in_beside_siblings_and_alone() -> None:
    bench = Bench()
    calls = [
        CallSpec(
            f"m{i}",
            Op.GENERATE,
            (("x", value(f"{i}")),),
            (("y", f"s{i}"),),
            function=MAP.id,
            fallback=(("y", value("none")),),
        )
        for i in range(3)
    ]
    bench.submit(*calls, call("reduce", "answer", JOIN, xs=tuple(Ref(f"s{i}") for i in range(3))))
    bad = bench.dispatched[0]
    bench.post(ev.Failed(bad.key, bad.attempt, Fault.CALL, "bad", "bad"))
    for sent in bench.dispatched[1:3]:
        bench.finish(sent, "ok")
    assert prompt_text(bench.dispatched[3]) == "Join these. none\n\nok\n\nok "
    bench.finish(bench.dispatched[3])
    assert bench.scheduler.program("p").state is ProgramState.DONE


def test_an_engines_fault_is_tried_again_and_then_given_up() -> None:
    bench = Bench(attempts=3, breaker_failures=10)
    bench.submit(call("a", "v", x=value("1")))
    for attempt in (1, 2, 3):
        sent = bench.dispatched[-1]
        assert sent.attempt == attempt
        bench.post(ev.Failed(sent.key, attempt, Fault.ENGINE, "stream_broken", "it broke"))
        bench.post(ev.Tick(), after_s=5.0)
    assert failure(bench, "v").type == "stream_broken"
    assert len(bench.dispatched) == 3


def test_a_busy_engine_is_asked_again_when_it_said_so_but_not_for_ever() -> None:
    bench = Bench(busy_attempts=4)
    bench.submit(call("a", "v", x=value("1")))
    for _ in range(4):
        sent = bench.dispatched[-1]
        bench.post(ev.Failed(sent.key, sent.attempt, Fault.BUSY, "busy", "busy", retry_after_s=2.0))
        bench.post(ev.Tick(), after_s=1.9)
        assert bench.dispatched[-1] is sent
        bench.post(ev.Tick(), after_s=0.1)
    assert failure(bench, "v").type == "busy"


def test_an_answer_of_an_older_attempt_is_ignored() -> None:
    bench = Bench(breaker_failures=10)
    bench.submit(call("a", "v", x=value("1")))
    first = bench.dispatched[0]
    bench.post(ev.Failed(first.key, 1, Fault.ENGINE, "gone", "gone"))
    bench.post(ev.Tick(), after_s=5.0)
    bench.finish(first, "from the dead")
    assert outcome(bench, "v") is None
    bench.finish(bench.dispatched[1], "second")
    assert text(bench, "v") == "second"


def test_empty_text_is_a_value_unless_the_output_forbids_it() -> None:
    from dataclasses import replace

    from .programs import SHORT

    bench = Bench()
    strict = replace(call("b", "vb", x=value("2")), sampling=(("y", replace(SHORT, allow_empty=False)),))
    bench.submit(call("a", "va", x=value("1")), strict)
    for sent in list(bench.dispatched):
        bench.finish(sent, "")
    assert text(bench, "va") == ""
    for _ in range(2):
        bench.post(ev.Tick(), after_s=10.0)
        bench.finish(bench.dispatched[-1], "")
    assert failure(bench, "vb").type == "engine_empty"


def test_an_engine_that_dies_costs_each_call_one_attempt() -> None:
    bench = Bench()
    bench.submit(*map_reduce(4))
    for sent in bench.dispatched:
        bench.post(ev.Prefilled(sent.key, sent.attempt, 10, 0))
    bench.post(ev.EngineDown("e0"))
    assert set(states(bench).values()) == {CallState.READY, CallState.WAITING}
    from .programs import ENGINE

    bench.post(ev.EngineUp(ENGINE))
    done = 4
    while done < len(bench.dispatched):
        done += 1
        bench.finish(bench.dispatched[done - 1])
    assert bench.scheduler.program("p").state is ProgramState.DONE
    assert sorted(sent.attempt for sent in bench.dispatched) == [1, 1, 1, 1, 1, 2, 2, 2, 2]


def test_a_call_that_kills_engines_is_found_and_the_others_live() -> None:
    from .programs import ENGINE

    bench = Bench()
    bench.submit(call("poison", "vp", x=value("POISON")), *(call(f"m{i}", f"v{i}", x=value("ok")) for i in range(3)))
    kills, done = 0, 0
    while done < len(bench.dispatched):
        batch, done = bench.dispatched[done:], len(bench.dispatched)
        if any(sent.key.call == "poison" for sent in batch):
            kills += 1
            bench.post(ev.EngineDown("e0"))
            bench.post(ev.EngineUp(ENGINE))
        else:
            for sent in batch:
                bench.finish(sent)
    assert kills == 2
    assert failure(bench, "vp").type == "poison"
    assert [text(bench, f"v{i}") for i in range(3)] == ["answer"] * 3


def test_a_prompt_of_nothing_never_reaches_an_engine() -> None:
    from .programs import SHORT, function

    bare = function("{{x}}{{y}}", y=SHORT)
    bench = Bench()
    bench.post(ev.Submitted("p", functions=(bare,), calls=(call("a", "v", bare, x=value(" \n")),)))
    assert failure(bench, "v").type == "empty_prompt"
    assert not bench.dispatched


# ---- cancelling and time


def test_cancel_drops_what_waits_and_aborts_what_runs_and_frees_room_when_the_engine_says_so() -> None:
    bench = Bench()
    bench.submit(*map_reduce(8))
    running = list(bench.dispatched)
    bench.submit(call("next", "v", x=value("1")), program="q")
    bench.post(ev.Cancelled("p"))
    assert {a.key for a in bench.of(ev.Abort)} == {sent.key for sent in running}
    assert bench.scheduler.program("p").state is ProgramState.CANCELLED
    assert failure(bench, "answer").type == "cancelled"
    assert len(bench.dispatched) == len(running), "the room is not free yet"
    bench.post(ev.Aborted(running[0].key, running[0].attempt))
    assert bench.dispatched[-1].key.program == "q"


@pytest.mark.parametrize("instant", range(0, 40, 3))
def test_after_a_cancel_nothing_is_sent(instant: int) -> None:
    bench = Bench()
    bench.submit(*map_reduce(6))
    todo: list[ev.Event] = []
    for sent in bench.dispatched:
        key = (sent.key, sent.attempt)
        todo += [ev.Started(*key), ev.Prefilled(*key, 10, 0), ev.Progress("e0", ((*key, 3),))]
    for event in todo[:instant]:
        bench.post(event, after_s=0.01)
    bench.post(ev.Cancelled("p"))
    before = len(bench.dispatched)
    for sent in list(bench.dispatched):
        bench.finish(sent, "too late")
    assert len(bench.dispatched) == before
    assert failure(bench, "s0").type == "cancelled"


def test_a_calls_time_out_is_owned_by_the_call() -> None:
    from dataclasses import replace

    bench = Bench()
    bench.submit(
        replace(call("a", "va", x=value("1")), timeout_s=2.0), replace(call("b", "vb", x=value("2")), timeout_s=2.0)
    )
    bench.finish(bench.dispatched[0])
    bench.post(ev.Tick(), after_s=3.0)
    assert text(bench, "va") == "answer"
    assert failure(bench, "vb").type == "timeout"
    assert [a.key.call for a in bench.of(ev.Abort)] == ["b"]


def test_budgets_end_a_program() -> None:
    bench = Bench()
    bench.submit(*chain(3), program="tokens", budget=Budget(total_tokens=20))
    bench.submit(*chain(3), program="wall", budget=Budget(wall_s=1.0))
    bench.run()
    assert bench.scheduler.program("tokens").state is ProgramState.FAILED
    assert outcome(bench, "v2", "tokens").type == "budget_exceeded"  # type: ignore[union-attr]
    bench.post(ev.Tick(), after_s=1.0)
    with pytest.raises(Refused, match="budget allows 2"):
        bench.submit(*chain(3), program="calls", budget=Budget(calls=2))


def test_a_program_that_never_ends_is_ended() -> None:
    bench = Bench(lifetime_s=100.0)
    bench.submit(call("a", "v", x=Ref("open")), variables=(("open", None),))
    bench.post(ev.Tick(), after_s=101.0)
    assert failure(bench, "v").type == "expired"
    assert bench.scheduler.program("p").ended_s is not None


def test_ended_programs_are_forgotten() -> None:
    bench = Bench(retain_s=10.0, retained_programs=2)
    for name in ("a", "b", "c"):
        bench.submit(call("x", "v", x=value("1")), program=name)
        bench.run()
    assert bench.scheduler.programs() == ["b", "c"]
    bench.post(ev.Tick(), after_s=20.0)
    assert bench.scheduler.programs() == []
    with pytest.raises(Refused, match="no program 'a'"):
        bench.scheduler.program("a")


# ---- lists, races, transforms, live programs


def test_each_spreads_a_list_and_collects_it_in_order() -> None:
    bench = Bench()
    spread = CallSpec("m", Op.GENERATE, (("x", Ref("docs")),), (("y", "s"),), function=MAP.id, each="x")
    docs = Value('["a", "b", "c"]', 3, ("a", "b", "c"))
    bench.submit(spread, call("reduce", "answer", JOIN, xs=Ref("s")), variables=(("docs", docs),))
    bench.run()
    assert [sent.key.call for sent in bench.dispatched] == ["m[0]", "m[1]", "m[2]", "reduce"]
    assert prompt_text(bench.dispatched[3]) == "Join these. answer of m[0]\n\nanswer of m[1]\n\nanswer of m[2] "
    assert bench.scheduler.program("p").sinks == ("answer",)


@pytest.mark.parametrize(("given", "kind"), [("[]", None), ("no list", "not_a_list"), ('{"a": 1}', "not_a_list")])
def test_each_over_nothing_is_an_empty_list_and_over_no_list_an_error(given: str, kind: str | None) -> None:
    bench = Bench()
    spread = CallSpec("m", Op.GENERATE, (("x", Ref("docs")),), (("y", "s"),), function=MAP.id, each="x")
    bench.submit(spread, variables=(("docs", value(given)),))
    found = outcome(bench, "s")
    assert (found.type if isinstance(found, Failure) else found.items if found else 0) == (kind or ())


def test_the_first_value_of_a_race_wins_and_the_others_are_aborted() -> None:
    bench = Bench()
    racers = [
        CallSpec(f"r{i}", Op.GENERATE, (("x", value("go")),), (("y", "v"),), function=MAP.id, race="r")
        for i in range(3)
    ]
    bench.submit(*racers)
    bad, good, _ = bench.dispatched
    bench.post(ev.Failed(bad.key, 1, Fault.CALL, "bad", "bad"))
    assert outcome(bench, "v") is None
    bench.finish(good, "first")
    assert text(bench, "v") == "first"
    assert [a.key.call for a in bench.of(ev.Abort)] == ["r2"]
    assert bench.scheduler.program("p").state is ProgramState.DONE


def test_transforms_run_in_the_server() -> None:
    bench = Bench()
    field = CallSpec("f", Op.TRANSFORM, (("x", Ref("j")),), (("y", "v"),), transform=Transform("field", "a.1.b"))
    wrong = CallSpec("g", Op.TRANSFORM, (("x", Ref("j")),), (("y", "w"),), transform=Transform("field", "a.c"))
    bench.submit(field, wrong, variables=(("j", value('{"a": [0, {"b": "deep"}]}')),))
    assert text(bench, "v") == "deep"
    assert "'a.c'" in failure(bench, "w").message


def test_calls_are_added_to_a_live_program_and_open_variables_set_once() -> None:
    bench = Bench()
    bench.submit(call("a", "va", x=Ref("open")), variables=(("open", None),), closed=False)
    assert not bench.dispatched
    bench.post(ev.VariableSet("p", "open", value("now")))
    bench.post(ev.VariableSet("p", "open", value("now")))
    with pytest.raises(Refused, match="to another value"):
        bench.post(ev.VariableSet("p", "open", value("other")))
    with pytest.raises(Refused, match="set by call 'a'"):
        bench.post(ev.VariableSet("p", "va", value("mine")))
    bench.run()
    assert bench.scheduler.program("p").state is ProgramState.OPEN
    bench.post(ev.CallsAdded("p", calls=(call("b", "vb", x=Ref("va")),), close=True))
    bench.run()
    assert bench.scheduler.program("p").state is ProgramState.DONE
    with pytest.raises(Refused, match="ended"):
        bench.post(ev.CallsAdded("p", calls=(call("c", "vc", x=value("1")),)))


def test_after_orders_without_a_value() -> None:
    from dataclasses import replace

    bench = Bench()
    bench.submit(call("a", "va", x=value("1")), replace(call("b", "vb", x=value("2")), after=("a",)))
    assert [sent.key.call for sent in bench.dispatched] == ["a"]
    bench.run()
    assert bench.scheduler.program("p").sinks == ("va", "vb")


# ---- refusals


@pytest.mark.parametrize(
    ("calls", "kind", "culprit"),
    [
        ((call("a", "va", x=Ref("vb")), call("b", "vb", x=Ref("va"))), "cycle", "a -> b"),
        ((call("a", "va"),), "missing_hole", "'x'"),
        ((call("a", "va", x=value("1"), z=value("2")),), "unknown_hole", "'z'"),
        ((call("a", "v", x=value("1")), call("b", "v", x=value("2"))), "bound_twice", "'v'"),
        ((call("a", "va", x=value("1")), call("a", "vb", x=value("2"))), "duplicate_call", "'a'"),
        ((call("a", "va", x=Ref("nowhere")),), "unknown_variable", "'nowhere'"),
        ((CallSpec("a", Op.GENERATE, (), (("y", "v"),), function="nope"),), "unknown_function", "'nope'"),
        ((CallSpec("a", Op.TOOL, (), (("y", "v"),), tool="t"),), "not_served", "'a'"),
        ((call("a", "a", PAIR, x=value("1")),), "unknown_hole", "no output 'y'"),
        (chain(30), "limit_exceeded", "depth"),
        (map_reduce(60), "limit_exceeded", "calls_per_program"),
    ],
)
def test_what_cannot_run_is_refused_whole_and_named(calls: tuple[CallSpec, ...], kind: str, culprit: str) -> None:
    bench = Bench(depth=20, calls_per_program=50)
    with pytest.raises(Refused, match=culprit) as refused:
        bench.submit(*calls)
    assert refused.value.type == kind
    assert bench.scheduler.programs() == []


def test_a_cycle_made_by_two_submits_is_refused_at_the_second() -> None:
    bench = Bench()
    bench.submit(call("a", "va", x=Ref("open")), variables=(("open", None),), closed=False)
    with pytest.raises(Refused, match="wait for each other") as refused:
        bench.post(ev.CallsAdded("p", calls=(call("b", "open", x=Ref("va")),)))
    assert refused.value.type == "cycle"
    bench.post(ev.CallsAdded("p", calls=(call("b", "open", x=value("1")),), close=True))
    bench.run()
    assert bench.scheduler.program("p").state is ProgramState.DONE


def test_an_unknown_model_is_refused_with_the_names_there_are() -> None:
    from dataclasses import replace

    with pytest.raises(Refused, match="'gpt'; there are model"):
        Bench().submit(replace(call("a", "v", x=value("1")), model="gpt"))
