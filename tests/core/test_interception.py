"""A program waits for its client: what it read stays, moves out or goes, by how long that is expected to take and who wants the room."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parrot_server.core import events as ev
from parrot_server.core.model import CallSpec, CostModel, Op, Ref, Tier, Transform, Value
from parrot_server.core.state import Timer

from .programs import ENGINE, FUNCTIONS, Bench, call

COST = CostModel(prefill_token_s=0.001, step_s=0.01, offload_token_s=1e-6)
DEVICE = replace(ENGINE, kv_tokens=2_500, max_running=8, can_pin=True, cost=COST)
BOTH = replace(DEVICE, can_offload=True, host_tokens=10_000)


def read(bench: Bench, program: str = "p", stall_s: float | None = 2.0, tokens: int = 1_000) -> str:
    """A live program's only call reads a text and ends; returns the prefix that it may go on from."""
    turn = call("turn", "v", x=Value(f"text of {program}", tokens))
    turn = replace(turn, expect_return_s=stall_s)
    bench.post(ev.Submitted(program, functions=FUNCTIONS, calls=(turn,), closed=False))
    (sent,) = [sent for sent in bench.dispatched if sent.key.program == program]
    bench.finish(sent)
    return sent.prompt.prefixes[-2]  # without the turn that the answer opens


def fill(bench: Bench, tokens: int, program: str = "others") -> None:
    """A call that runs and one that finds no room."""
    calls = [call(f"c{i}", f"v{i}", x=Value(f"{program} {i}", tokens)) for i in range(2)]
    bench.post(ev.Submitted(program, functions=FUNCTIONS, calls=tuple(calls)))


def asked(bench: Bench, prefix: str) -> list[Tier]:
    return [action.tier for action in bench.actions if isinstance(action, ev.Keep) and action.prefix == prefix]


def test_what_nobody_wants_the_room_of_stays_however_long_it_takes() -> None:
    bench = Bench(BOTH)
    assert asked(bench, read(bench, stall_s=1_000.0)) == [Tier.DEVICE]


@pytest.mark.parametrize(
    ("engine", "stall_s", "then"),
    [
        (DEVICE, 0.2, []),
        (DEVICE, 20.0, [Tier.NONE]),
        (BOTH, 0.0001, []),
        (BOTH, 0.2, [Tier.HOST]),
        (BOTH, 20.0, [Tier.HOST]),
        (replace(BOTH, host_tokens=900), 0.2, []),
        (replace(BOTH, host_tokens=900), 20.0, [Tier.NONE]),
    ],
)
def test_when_the_room_is_wanted_the_cheapest_way_is_taken(engine: object, stall_s: float, then: list[Tier]) -> None:
    bench = Bench(engine)  # type: ignore[arg-type]
    prefix = read(bench, stall_s=stall_s)
    fill(bench, 1_000)
    assert asked(bench, prefix) == [Tier.DEVICE, *then]
    both_run = len([sent for sent in bench.dispatched if sent.key.program == "others"]) == 2
    assert both_run == bool(then), "what was let go makes room for those that wait, at once"


def test_where_room_is_wanted_already_it_is_decided_when_the_stall_begins() -> None:
    bench = Bench(BOTH)
    bench.post(ev.Submitted("p", functions=FUNCTIONS, calls=(call("c", "v", x=Value("text", 1_000)),), closed=False))
    fill(bench, 1_300)
    assert len(bench.dispatched) == 2, "one waits"
    bench.finish(bench.dispatched[0])
    assert asked(bench, bench.dispatched[0].prompt.prefixes[-2]) == [Tier.HOST]


def test_a_stall_that_outlasts_its_expectation_is_not_thought_to_end_soon() -> None:
    bench = Bench(DEVICE)
    prefix = read(bench, stall_s=8.0)
    bench.post(ev.Tick(), after_s=20.0)
    fill(bench, 1_000)
    assert asked(bench, prefix) == [Tier.DEVICE, Tier.NONE]


def test_what_moved_out_is_let_go_when_the_program_has_gone_on() -> None:
    bench = Bench(BOTH)
    prefix = read(bench)
    fill(bench, 1_000)
    bench.post(ev.KvChanged(prefix, "e0", Tier.HOST, 1_040))
    more = call("more", "w", x=Value("text of p", 1_000))
    bench.post(ev.CallsAdded("p", calls=(more,)))
    assert asked(bench, prefix) == [Tier.DEVICE, Tier.HOST], "it will be read again"
    bench.run()
    assert asked(bench, prefix)[2] is Tier.NONE


@pytest.mark.parametrize("end", [ev.Closed("p"), ev.Cancelled("p")])
def test_nothing_is_left_of_a_program_that_ends(end: ev.Event) -> None:
    for pressed in (False, True):
        bench = Bench(BOTH)
        prefix = read(bench)
        if pressed:
            fill(bench, 1_000)
        bench.post(end)
        assert asked(bench, prefix)[-1] is Tier.NONE


def test_what_is_not_waited_for_any_longer_goes() -> None:
    bench = Bench(BOTH)
    prefix = read(bench, stall_s=2.0)
    bench.post(ev.Tick(), after_s=5.9)
    assert asked(bench, prefix) == [Tier.DEVICE]
    bench.post(ev.Tick(), after_s=0.2)
    assert asked(bench, prefix) == [Tier.DEVICE, Tier.NONE]


def test_a_program_that_goes_on_with_something_else_holds_nothing() -> None:
    bench = Bench(BOTH)
    prefix = read(bench)
    bench.post(ev.CallsAdded("p", calls=(call("more", "w", x=Value("another text", 10)),)))
    assert asked(bench, prefix) == [Tier.DEVICE, Tier.NONE]


def test_an_engine_that_could_not_move_it_out_holds_nothing() -> None:
    bench = Bench(BOTH)
    prefix = read(bench)
    fill(bench, 1_000)
    bench.post(ev.KvChanged(prefix, "e0", Tier.HOST, 0))
    bench.post(ev.Closed("p"))
    assert asked(bench, prefix) == [Tier.DEVICE, Tier.HOST]


def test_the_host_s_room_is_counted_as_the_engine_counts_it() -> None:
    bench = Bench(replace(BOTH, host_tokens=1_100))
    first, second = (read(bench, program, tokens=500) for program in ("p", "q"))
    fill(bench, 1_000)
    assert asked(bench, first) == asked(bench, second) == [Tier.DEVICE, Tier.HOST]
    bench.post(ev.KvChanged(first, "e0", Tier.HOST, 540))
    bench.post(ev.KvChanged(second, "e0", Tier.HOST, 570))
    assert asked(bench, first) == [Tier.DEVICE, Tier.HOST, Tier.NONE], "the one that was moved out first gave way"


def test_how_long_a_client_takes_is_learned() -> None:
    bench = Bench(DEVICE)
    for _ in range(20):
        bench.post(ev.Tick())
    bench.post(ev.Submitted("p", functions=FUNCTIONS, calls=(call("c", "v", x=Value("x", 5)),), closed=False))
    bench.run()
    for turn in range(6):
        bench.post(ev.Tick(), after_s=10.0)
        bench.post(ev.CallsAdded("p", calls=(call(f"c{turn}", f"v{turn}", x=Value("text", 1_000)),)))
        bench.finish(bench.dispatched[-1])
    prefix = bench.dispatched[-1].prompt.prefixes[-2]
    fill(bench, 1_000)
    assert asked(bench, prefix)[-1] is Tier.NONE, "it is known to take ten seconds"


def test_what_was_moved_out_is_not_let_go_while_the_next_call_waits_to_read_it() -> None:
    bench = Bench(BOTH)
    prefix = read(bench, stall_s=0.2)
    fill(bench, 1_000)
    assert asked(bench, prefix)[-1] is Tier.HOST
    bench.post(ev.KvChanged(prefix, "e0", Tier.HOST, 1_040))
    fill(bench, 1_000, "more")
    following = call("next", "w", x=Value("text of p", 1_000))
    bench.post(ev.CallsAdded("p", calls=(following,)), after_s=0.1)
    assert not [sent for sent in bench.dispatched if sent.key.call == "next"]
    bench.post(ev.Tick(), after_s=5.0)
    assert asked(bench, prefix)[-1] is Tier.HOST
    bench.post(ev.Cancelled("p"))
    assert asked(bench, prefix)[-1] is Tier.NONE


def test_nothing_is_due_for_programs_that_are_forgotten() -> None:
    bench = Bench(replace(DEVICE, kv_tokens=10**9), retained_programs=1)
    for number in range(3_000):
        read(bench, program=f"p{number}", stall_s=1e9, tokens=100)
        bench.post(ev.Cancelled(f"p{number}"))
    stalls = [due for due in bench.scheduler._state._timers if due[2] is Timer.STALL]
    assert len(stalls) < 2_500


def test_a_program_stalls_when_what_it_makes_of_an_answer_is_there() -> None:
    """An agent parses each answer: its last step is a transform, which reads nothing of the engine's."""
    bench = Bench(BOTH)
    turn = replace(call("turn", "v", x=Value("text of p", 1_000)), expect_return_s=2.0)
    pick = CallSpec("pick", Op.TRANSFORM, (("x", Ref("v")),), (("y", "w"),), transform=Transform("field", "a"))
    bench.post(ev.Submitted("p", functions=FUNCTIONS, calls=(turn, pick), closed=False))
    (sent,) = bench.dispatched
    bench.finish(sent, '{"a": "b"}')
    prefix = sent.prompt.prefixes[-2]
    assert asked(bench, prefix) == [Tier.DEVICE]
    bench.post(ev.CallsAdded("p", calls=(call("next", "u", x=Value("other", 1_000)),)), after_s=5.0)
    assert asked(bench, prefix) == [Tier.DEVICE, Tier.NONE]
