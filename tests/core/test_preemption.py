"""Calls that are turned out for better ones keep their place, and large ones get their turn."""

from __future__ import annotations

from dataclasses import replace

from parrot_server.core import events as ev
from parrot_server.core.model import CallState, CostModel, Criterion, Ref, Sampling, Value

from .programs import ENGINE, JOIN, Bench, call, function, map_reduce, value


def answer_aborts(bench: Bench) -> None:
    for action in [action for action in bench.actions if isinstance(action, ev.Abort)]:
        bench.actions.remove(action)
        bench.post(ev.Aborted(action.key, action.attempt))


def test_a_storm_of_better_calls_evicts_none_more_than_twice_and_all_end() -> None:
    bench = Bench(replace(ENGINE, kv_tokens=300, max_running=4), age_s=1e9)
    tail = call("t", "v", x=value("t", 200))
    bench.submit(tail, program="batch", criteria=(("v", Criterion("throughput")),))
    for number in range(12):
        bench.submit(call("a", "v", x=value(f"{number}", 200)), program=f"p{number}")
        answer_aborts(bench)
        running = [sent for sent in bench.dispatched if sent.key.program == f"p{number}"]
        if running:
            bench.finish(running[-1])
    attempts = [sent for sent in bench.dispatched if sent.key.program == "batch"]
    assert len(attempts) <= 3
    bench.run()
    for program in bench.scheduler.programs():
        assert bench.scheduler.program(program).ended_s is not None, program


def test_the_place_of_an_evicted_call_is_that_of_its_first_arrival() -> None:
    bench = Bench(replace(ENGINE, kv_tokens=300, max_running=4), age_s=1.0)
    wish = {"criteria": (("v", Criterion("throughput")),)}
    bench.submit(call("t", "v", x=value("one", 200)), program="old", **wish)
    bench.post(ev.Tick(), after_s=0.5)
    bench.submit(call("t", "v", x=value("two", 200)), program="young", **wish)
    assert [sent.key.program for sent in bench.dispatched] == ["old"]
    bench.submit(call("a", "v", x=value("a", 200)), program="urgent")
    answer_aborts(bench)
    assert bench.dispatched[-1].key.program == "urgent"
    bench.finish(bench.dispatched[-1])
    assert bench.dispatched[-1].key.program == "old"


def test_a_group_of_sixteen_on_four_slots_ends_under_a_stream_of_single_calls() -> None:
    bench = Bench(replace(ENGINE, max_running=4, kv_tokens=100_000), age_s=5.0)
    bench.submit(*map_reduce(16), program="book")
    done = 0
    for number in range(400):
        bench.submit(call("a", "v", x=value(f"{number}")), program=f"p{number}")
        bench.post(ev.Tick(), after_s=0.25)
        if done < len(bench.dispatched):
            bench.finish(bench.dispatched[done])
            done += 1
        if bench.scheduler.program("book").ended_s is not None:
            break
    states = dict(bench.scheduler.program("book").calls)
    assert states == {CallState.DONE: 17}, states


def test_a_large_call_gets_room_under_a_stream_of_small_ones() -> None:
    bench = Bench(replace(ENGINE, max_running=8, kv_tokens=1000), age_s=2.0, patience_s=10.0)
    wish = {"criteria": (("v", Criterion("throughput")),)}
    sent_after: int | None = None
    for number in range(300):
        bench.submit(call("a", "v", x=value(f"{number}", 250)), program=f"p{number}")
        if number == 5:
            bench.submit(call("large", "v", x=value("large", 900)), program="large", **wish)
        running = [sent for sent in bench.dispatched if bench.scheduler.program(sent.key.program).ended_s is None]
        if any(sent.key.program == "large" for sent in running):
            sent_after = number
            break
        bench.post(ev.Tick(), after_s=0.5)
        if running:
            bench.finish(running[0])
    assert sent_after is not None, "the large call never ran"


def test_what_is_held_back_does_not_stand_in_the_way_of_what_is_not() -> None:
    """A call that nobody waits for waits for a group that runs; another group that comes later does not wait behind it."""
    cost = CostModel(prefill_token_s=1e-4, step_s=0.01, sequence_s=0.002, resident_token_s=1e-6)
    bench = Bench(replace(ENGINE, max_running=256, kv_tokens=10**7, cost=cost), quantum_token_s=100.0)

    def group(program: str, maps: int, tokens: int) -> None:
        calls = [call(f"m{i}", f"s{i}", x=Value(f"{program}{i}", tokens)) for i in range(maps)]
        bench.submit(*calls, call("r", "a", JOIN, xs=tuple(Ref(f"s{i}") for i in range(maps))), program=program)

    group("running", 2, 10)
    throughput = (("v", Criterion("throughput")),)
    bench.submit(call("c", "v", x=Value("nobody", 3_000)), program="background", criteria=throughput)
    assert not [sent for sent in bench.dispatched if sent.key.program == "background"]
    bench.post(ev.Tick(), after_s=20.0)
    group("later", 128, 4_000)
    assert sum(sent.key.program == "later" for sent in bench.dispatched) == 128


def test_nobody_is_turned_out_for_a_call_that_waits_for_a_prefix_and_not_for_room() -> None:
    """More calls share a cold beginning than may wait for it at once: the rest waits in the queue, and takes nobody's room."""
    bench = Bench(replace(ENGINE, max_running=4, kv_tokens=100_000, can_pin=True, can_pause=True), warm_tokens=1)
    wish = {"criteria": (("v", Criterion("throughput")),)}
    bench.submit(call("t", "v", JOIN, xs=value("text")), program="background", **wish)
    bench.post(ev.Started(bench.dispatched[-1].key, 1))
    bench.submit(*map_reduce(8), program="book")
    assert len(bench.of(ev.Keep)) == 1
    bench.post(ev.Tick(), after_s=0.05)
    assert bench.of(ev.Abort) == bench.of(ev.Pause) == []


def test_a_call_that_asks_for_more_than_any_context_does_not_wait_for_an_empty_engine() -> None:
    """It goes to the engine, which refuses it, and holds up nobody."""
    bench = Bench(replace(ENGINE, context_tokens=1_000, kv_tokens=10_000))
    endless = function("Say it. {{x}} {{y}}", y=Sampling(max_tokens=100_000))
    bench.submit(call("long", "v", x=value("text", 100)), program="long")
    event = ev.Submitted("endless", functions=(endless,), calls=(call("a", "v", endless, x=value("text")),))
    bench.post(event)
    bench.submit(call("a", "v", x=value("other")), program="after")
    assert [sent.key.program for sent in bench.dispatched] == ["long", "endless", "after"]
