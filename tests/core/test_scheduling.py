"""Who runs where and when: objectives, bounds, placement, shared prefixes, breakers, fairness, waits that end."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from parrot_server.core import events as ev
from parrot_server.core.model import CostModel, Criterion, Objective, ProgramState, Ref, Tier, Usage
from parrot_server.core.prefix import chain_id
from parrot_server.errors import Fault

from .programs import ENGINE, JOIN, MAP, SHORT, Bench, call, chain, function, map_reduce, value

GPU_LIKE = replace(ENGINE, max_running=64, kv_tokens=100_000, can_pause=True, can_pin=True)
COSTLY_STEPS = CostModel(prefill_token_s=0.001, step_s=0.01, sequence_s=0.002)


def objectives(bench: Bench, program: str = "p") -> dict[str, Objective]:
    return {node.node: node.objective for node in bench.scheduler.graph(program).nodes}


def sent_calls(bench: Bench) -> list[str]:
    return [sent.key.call for sent in bench.dispatched]


# ---- objectives


def test_a_chain_is_expedited_from_end_to_end() -> None:
    bench = Bench()
    bench.submit(*chain(4))
    assert set(objectives(bench).values()) == {Objective.EXPEDITE}


def test_siblings_of_a_join_are_a_group_and_its_last_member_rises() -> None:
    bench = Bench()
    bench.submit(*map_reduce(3))
    nodes = {node.node: node for node in bench.scheduler.graph("p").nodes}
    assert objectives(bench) == {
        "m0": Objective.BATCH,
        "m1": Objective.BATCH,
        "m2": Objective.BATCH,
        "reduce": Objective.EXPEDITE,
    }
    assert nodes["m0"].group == nodes["m1"].group == nodes["m2"].group
    assert nodes["reduce"].group is None
    bench.finish(bench.dispatched[0])
    bench.finish(bench.dispatched[1])
    assert objectives(bench)["m2"] is Objective.EXPEDITE


def test_what_leads_to_a_member_of_a_group_is_batched_with_its_like() -> None:
    bench = Bench()
    firsts = [call(f"a{i}", f"a{i}", x=value(f"{i}")) for i in range(3)]
    seconds = [call(f"b{i}", f"b{i}", x=Ref(f"a{i}")) for i in range(3)]
    bench.submit(*firsts, *seconds, call("j", "v", JOIN, xs=tuple(Ref(f"b{i}") for i in range(3))))
    nodes = {node.node: node for node in bench.scheduler.graph("p").nodes}
    assert nodes["a0"].objective is Objective.BATCH
    assert nodes["a0"].group == nodes["a2"].group != nodes["b0"].group
    assert nodes["a0"].path_s > nodes["b0"].path_s > nodes["j"].path_s


def test_throughput_is_batched_and_a_stricter_wish_lifts_what_is_above() -> None:
    bench = Bench()
    bench.submit(*chain(3), criteria=(("v2", Criterion("throughput")),))
    assert set(objectives(bench).values()) == {Objective.BATCH}
    bench.post(ev.CriteriaSet("p", criteria=(("v2", Criterion("latency")),)))
    assert set(objectives(bench).values()) == {Objective.EXPEDITE}


def test_a_deadline_is_batched_until_its_slack_is_gone_and_says_when_it_cannot_be_met() -> None:
    bench = Bench(replace(ENGINE, max_running=1))
    bench.submit(call("other", "v", x=value("1")), program="q")
    bench.submit(call("a", "v", x=value("1")), criteria=(("v", Criterion("deadline", 10.0)),))
    assert objectives(bench)["a"] is Objective.BATCH
    assert not bench.scheduler.program("p").at_risk
    bench.post(ev.Tick(), after_s=9.7)
    assert objectives(bench)["a"] is Objective.EXPEDITE
    bench.post(ev.Tick(), after_s=1.0)
    assert bench.scheduler.program("p").at_risk


# ---- order and bounds


def test_an_expedited_call_starts_before_every_batch_call_that_has_not_started() -> None:
    bench = Bench()
    slow = [call(f"b{i}", f"v{i}", x=value(f"{i}")) for i in range(30)]
    bench.submit(*slow, program="batch", criteria=tuple((f"v{i}", Criterion("throughput")) for i in range(30)))
    assert len(bench.dispatched) == 4
    bench.submit(call("now", "v", x=value("1")), program="chat")
    bench.finish(bench.dispatched[0])
    assert bench.dispatched[4].key.program == "chat"
    assert bench.dispatched[4].priority > bench.dispatched[3].priority


def test_an_engine_that_can_pause_makes_room_for_an_expedited_call_at_once() -> None:
    bench = Bench(replace(ENGINE, can_pause=True))
    slow = [call(f"b{i}", f"v{i}", x=value(f"{i}")) for i in range(8)]
    bench.submit(*slow, program="batch", criteria=tuple((f"v{i}", Criterion("throughput")) for i in range(8)))
    bench.submit(call("now", "v", x=value("1")), program="chat")
    (pause,) = bench.of(ev.Pause)
    assert isinstance(pause, ev.Pause)
    bench.post(ev.Paused(pause.key, pause.attempt, 3))
    assert bench.dispatched[-1].key.program == "chat"
    bench.finish(bench.dispatched[-1])
    assert [a.key for a in bench.of(ev.Resume)] == [pause.key]


def test_batch_calls_are_paused_while_an_expedited_one_runs_and_go_on_after_it() -> None:
    engine = replace(GPU_LIKE, cost=COSTLY_STEPS)
    bench = Bench(engine, corunner_slowdown=1.25)
    slow = [call(f"b{i}", f"v{i}", x=value(f"{i}")) for i in range(8)]
    bench.submit(*slow, program="batch", criteria=tuple((f"v{i}", Criterion("throughput")) for i in range(8)))
    for sent in bench.dispatched:
        bench.post(ev.Prefilled(sent.key, sent.attempt, 10, 0))
    bench.submit(call("now", "v", x=value("1")), program="chat")
    assert bench.dispatched[-1].key.program == "chat"
    paused = [a for a in bench.of(ev.Pause) if isinstance(a, ev.Pause)]
    assert len(paused) == 7, "a quarter of one sequence's 12 ms is room for one more at 2 ms, not for two"
    for pause in paused:
        bench.post(ev.Paused(pause.key, pause.attempt, 1))
    assert not bench.of(ev.Resume)
    bench.finish(bench.dispatched[-1])
    assert len(bench.of(ev.Resume)) == 7
    for sent in bench.dispatched[:8]:
        bench.finish(sent)
    assert bench.scheduler.program("batch").state is ProgramState.DONE


def background(bench: Bench, count: int) -> list[ev.Dispatch]:
    """Calls that nobody waits for, decoding."""
    calls = [call(f"b{i}", f"v{i}", x=value(f"{i}")) for i in range(count)]
    bench.submit(*calls, program="background", criteria=tuple((f"v{i}", Criterion("throughput")) for i in range(count)))
    for sent in bench.dispatched:
        bench.post(ev.Prefilled(sent.key, sent.attempt, 10, 0))
    return list(bench.dispatched)


def pauses(bench: Bench) -> list[ev.Pause]:
    return [action for action in bench.of(ev.Pause) if isinstance(action, ev.Pause)]


def test_calls_that_nobody_waits_for_pause_while_a_group_runs_and_go_on_after_it() -> None:
    bench = Bench(replace(GPU_LIKE, cost=COSTLY_STEPS), corunner_slowdown=1.25)
    behind = background(bench, 8)
    bench.submit(*map_reduce(3), program="book")
    maps = [sent for sent in bench.dispatched if sent.key.program == "book"]
    assert [sent.priority for sent in maps] == [0, 0, 0]
    assert all(pause.key.program == "background" for pause in pauses(bench))
    assert len(pauses(bench)) == 7, "beside the first of the group is room for one"
    for pause in pauses(bench):
        bench.post(ev.Paused(pause.key, pause.attempt, 1))
    assert len(bench.of(ev.Resume)) == 1, "a quarter of the 16 ms of three is room for two at 2 ms"
    for sent in maps:
        bench.finish(sent)
    bench.finish(bench.dispatched[-1])
    assert bench.scheduler.program("book").state is ProgramState.DONE
    assert {resumed.key for resumed in bench.of(ev.Resume)} == {pause.key for pause in pauses(bench)}
    for sent in behind:
        bench.finish(sent)
    assert bench.scheduler.program("background").state is ProgramState.DONE


def test_a_full_engine_makes_room_for_a_group_call_by_call() -> None:
    bench = Bench(replace(ENGINE, can_pause=True))
    background(bench, 8)
    bench.submit(*map_reduce(3), program="book")
    for count in range(1, 4):
        assert len(pauses(bench)) == count
        pause = pauses(bench)[-1]
        assert pause.key.program == "background"
        bench.post(ev.Paused(pause.key, pause.attempt, 3))
        assert bench.dispatched[-1].key.call == f"m{count - 1}"
    assert len(pauses(bench)) == 3


def test_a_large_group_too_comes_before_what_nobody_waits_for() -> None:
    bench = Bench(replace(ENGINE, can_pause=True), quantum_token_s=0.5)
    background(bench, 8)
    bench.submit(*map_reduce(3), program="book")
    assert len(pauses(bench)) == 1, "its service is many quanta, and sinks it by some levels"


def test_a_group_evicts_nothing_while_it_is_held_back_for_an_expedited_call() -> None:
    bench = Bench(replace(GPU_LIKE, cost=COSTLY_STEPS), corunner_slowdown=1.25)
    bench.submit(call("now", "v", x=value("1")), program="chat")
    bench.post(ev.Prefilled(bench.dispatched[0].key, 1, 10, 0))
    background(bench, 4)
    assert len(bench.dispatched) == 2, "one fits beside it"
    bench.submit(*map_reduce(3), program="book")
    assert len(bench.dispatched) == 2
    assert not bench.of(ev.Abort)
    assert not pauses(bench)


def test_a_call_that_nobody_waits_for_is_held_back_by_a_group_no_longer_than_its_patience() -> None:
    bench = Bench(replace(GPU_LIKE, cost=COSTLY_STEPS), corunner_slowdown=1.0, patience_s=30.0, age_s=1e9)
    bench.submit(*map_reduce(2), program="book")
    for sent in bench.dispatched:
        bench.post(ev.Prefilled(sent.key, 1, 10, 0))
    bench.submit(call("b", "v", x=value("2")), program="batch", criteria=(("v", Criterion("throughput")),))
    bench.post(ev.Tick(), after_s=29.0)
    assert len(bench.dispatched) == 2
    bench.post(ev.Tick(), after_s=2.0)
    assert len(bench.dispatched) == 3


def test_an_order_that_deduces_nothing_tells_engines_nothing() -> None:
    bench = Bench(policy="fcfs")
    background(bench, 2)
    bench.submit(call("now", "v", x=value("1")), program="chat")
    assert [sent.priority for sent in bench.dispatched] == [0, 0, 0]


def test_a_batch_call_is_held_back_no_longer_than_its_patience() -> None:
    bench = Bench(replace(GPU_LIKE, cost=COSTLY_STEPS), corunner_slowdown=1.0, patience_s=30.0)
    bench.submit(call("long", "v", x=value("1")), program="chat")
    bench.post(ev.Prefilled(bench.dispatched[0].key, 1, 10, 0))
    bench.submit(call("b", "v", x=value("2")), program="batch", criteria=(("v", Criterion("throughput")),))
    bench.post(ev.Tick(), after_s=29.0)
    assert len(bench.dispatched) == 1
    bench.post(ev.Tick(), after_s=2.0)
    assert len(bench.dispatched) == 2


def test_the_wait_of_a_cold_call_under_endless_hot_traffic_is_bounded() -> None:
    """Levels are at most so far apart that whoever came `age_s` times that later stands behind."""
    bench = Bench(replace(ENGINE, max_running=1), age_s=1.0, throughput_levels=6.0)
    bench.submit(call("first", "v", x=value("0")), program="hot0")
    bench.submit(call("cold", "v", x=value("1")), program="cold", criteria=(("v", Criterion("throughput")),))
    for i in range(1, 100):
        bench.submit(call("hot", "v", x=value(f"{i}")), program=f"hot{i}")
        bench.finish(bench.dispatched[-1], after_s=0.5)
        if bench.dispatched[-1].key.program == "cold":
            break
    assert bench.now_s <= 8.0
    assert bench.dispatched[-1].key.program == "cold"


# ---- prefixes


def shared(count: int) -> list[object]:
    spec = function("You are a careful reader of long books. " * 12 + "{{x}} {{y}}", y=SHORT)
    calls = [replace(call(f"m{i}", f"v{i}", x=value(f"text {i}")), function=spec.id) for i in range(count)]
    return [spec, calls]


def submit_shared(bench: Bench, count: int, program: str = "p") -> None:
    spec, calls = shared(count)
    bench.post(ev.Submitted(program, functions=(spec,), calls=tuple(calls)))  # type: ignore[arg-type]


def test_one_sibling_goes_first_with_a_cold_prefix_and_the_others_wait_for_it() -> None:
    bench = Bench(replace(ENGINE, max_running=16))
    submit_shared(bench, 8)
    assert sent_calls(bench) == ["m0"]
    bench.post(ev.Prefilled(bench.dispatched[0].key, 1, 120, 0))
    assert len(bench.dispatched) == 8


def test_the_others_do_not_wait_for_a_first_one_that_failed() -> None:
    bench = Bench(replace(ENGINE, max_running=16))
    submit_shared(bench, 8)
    bench.post(ev.Failed(bench.dispatched[0].key, 1, Fault.CALL, "bad", "bad"))
    assert sent_calls(bench)[1] == "m1"
    bench.run()
    assert len(bench.dispatched) == 8


def test_an_engine_that_can_pin_is_warmed_once_and_lets_go_after_the_last_user() -> None:
    bench = Bench(replace(GPU_LIKE, max_running=4))
    submit_shared(bench, 8)
    (warm,) = bench.of(ev.Keep)
    assert isinstance(warm, ev.Keep)
    assert warm.tier is Tier.DEVICE
    assert warm.prompt is not None
    assert not bench.dispatched
    bench.post(ev.Warmed(warm.prefix, "e0", 120))
    assert len(bench.dispatched) == 4
    assert all(warm.prefix in sent.prompt.prefixes for sent in bench.dispatched)
    bench.run()
    keeps = [keep.tier for keep in bench.of(ev.Keep) if isinstance(keep, ev.Keep)]
    assert keeps == [Tier.DEVICE, Tier.NONE]
    assert bench.scheduler.engines()[0].pinned_prefixes == 0


def test_a_pin_that_fails_is_done_without() -> None:
    bench = Bench(GPU_LIKE)
    submit_shared(bench, 4)
    (warm,) = bench.of(ev.Keep)
    assert isinstance(warm, ev.Keep)
    bench.post(ev.WarmFailed(warm.prefix, "e0"))
    bench.run()
    assert bench.scheduler.program("p").state is ProgramState.DONE
    assert len(bench.of(ev.Keep)) == 1


def test_the_known_beginning_of_a_child_is_computed_while_its_parent_runs() -> None:
    spec = function("Rules of this house. " * 30 + "{{x}} {{y}}", y=SHORT)
    child = replace(call("child", "vc", x=Ref("va")), function=spec.id)
    bench = Bench(GPU_LIKE)
    bench.post(ev.Submitted("p", functions=(MAP, spec), calls=(call("a", "va", x=value("1")), child)))
    (warm,) = bench.of(ev.Keep)
    assert isinstance(warm, ev.Keep)
    bench.post(ev.Warmed(warm.prefix, "e0", 150))
    bench.run()
    assert warm.prefix in bench.dispatched[1].prompt.prefixes
    assert [keep.tier for keep in bench.of(ev.Keep) if isinstance(keep, ev.Keep)] == [Tier.DEVICE, Tier.NONE]


def test_two_tenants_share_no_prefix_and_one_shares_with_itself() -> None:
    bench = Bench(GPU_LIKE)
    for program, tenant in (("a", "x"), ("b", "x"), ("c", "y")):
        bench.submit(call("m", "v", x=value("same")), program=program, tenant=tenant)
    a, b, c = bench.dispatched
    assert a.prompt.prefixes == b.prompt.prefixes
    assert not set(a.prompt.prefixes) & set(c.prompt.prefixes)
    assert (a.salt, c.salt) == ("x", "y")


@given(st.lists(st.text(), min_size=2, max_size=2), st.lists(st.text(), min_size=2, max_size=2))
def test_identities_are_framed(a: list[str], b: list[str]) -> None:
    chained = [chain_id(chain_id("", "value", first), "value", second) for first, second in (a, b)]
    assert (chained[0] == chained[1]) == (a == b)
    assert chain_id("", "org_1", "2345") != chain_id("", "org_12345", "")


# ---- several engines


def two(**fields: object) -> tuple[object, object]:
    engine = replace(ENGINE, **fields)  # type: ignore[arg-type]
    return engine, replace(engine, id="e1")


def test_calls_go_where_their_prefix_is_unless_its_queue_costs_more() -> None:
    bench = Bench(*two(max_running=2))  # type: ignore[arg-type]
    submit_shared(bench, 1)
    first = bench.dispatched[0]
    bench.finish(first)
    submit_shared(bench, 1, program="q")
    submit_shared(bench, 1, program="r")
    assert [sent.engine for sent in bench.dispatched] == [first.engine] * 3, "prefilling again costs more than company"
    submit_shared(bench, 1, program="s")
    assert bench.dispatched[-1].engine != first.engine, "no slot is free where the prefix is"


def test_models_map_to_engines() -> None:
    bench = Bench(ENGINE, replace(ENGINE, id="e1", models=("other",)))
    bench.submit(*(replace(call(f"a{i}", f"v{i}", x=value(f"{i}")), model="other") for i in range(3)))
    assert {sent.engine for sent in bench.dispatched} == {"e1"}
    assert {sent.model for sent in bench.dispatched} == {"other"}


def test_an_engine_that_fails_each_call_is_left_alone_then_probed_with_one() -> None:
    bench = Bench(*two(max_running=8), breaker_failures=3, breaker_s=5.0, attempts=10)  # type: ignore[arg-type]
    bench.submit(*(call(f"a{i}", f"v{i}", x=value(f"{i}")) for i in range(6)))
    for sent in list(bench.dispatched):
        if sent.engine == "e0":
            bench.post(ev.Failed(sent.key, 1, Fault.ENGINE, "broken", "broken"))
    before = len(bench.dispatched)
    bench.post(ev.Tick(), after_s=1.0)
    assert {sent.engine for sent in bench.dispatched[before:]} == {"e1"}
    assert bench.scheduler.engines()[0].breaker == "open"
    bench.post(ev.Tick(), after_s=5.0)
    before = len(bench.dispatched)
    bench.submit(*(call(f"a{i}", f"v{i}", x=value(f"new {i}")) for i in range(6)), program="q")
    probes = [sent for sent in bench.dispatched[before:] if sent.engine == "e0"]
    assert len(probes) == 1
    bench.finish(probes[0])
    assert bench.scheduler.engines()[0].breaker == "closed"


def test_a_calls_own_fault_never_opens_the_breaker() -> None:
    bench = Bench(breaker_failures=3)
    for i in range(20):
        bench.submit(call("a", "v", x=value("too long")), program=f"p{i}")
        sent = bench.dispatched[-1]
        bench.post(ev.Failed(sent.key, 1, Fault.CALL, "context_overflow", "too long"))
    bench.submit(call("a", "v", x=value("good")), program="good")
    bench.finish(bench.dispatched[-1])
    assert bench.scheduler.program("good").state is ProgramState.DONE


# ---- fairness


def token_time(bench: Bench, tenant_programs: list[str]) -> float:
    return sum(bench.scheduler.program(name).attained_token_s for name in tenant_programs)


def test_tenants_receive_their_weights_under_saturation() -> None:
    bench = Bench(replace(ENGINE, max_running=3, kv_tokens=100_000))
    bench.post(ev.LimitsSet((("a", 1.0), ("b", 2.0), ("c", 4.0))))
    calls = [call(f"m{i}", f"v{i}", x=value(f"text {i}", 100)) for i in range(420)]
    for tenant in "abc":
        bench.submit(*calls, program=tenant, tenant=tenant)
    for done in range(420):
        sent = bench.dispatched[done]
        bench.now_s += 0.1
        bench.scheduler.handle(ev.Started(sent.key, sent.attempt), bench.now_s)
        usage = Usage(100, 0, 5)
        bench.actions += bench.scheduler.handle(
            ev.Finished(sent.key, sent.attempt, value("x"), usage), bench.now_s + 0.1
        )
        bench.now_s += 0.1
    shares = [token_time(bench, [tenant]) for tenant in "abc"]
    total = sum(shares)
    assert [share / total * 7 for share in shares] == pytest.approx([1, 2, 4], rel=0.05)


def test_a_new_program_does_not_reset_its_tenants_account_and_idling_saves_nothing() -> None:
    bench = Bench(replace(ENGINE, max_running=1))
    bench.submit(call("a", "v", x=value("1")), program="greedy", tenant="greedy")
    bench.finish(bench.dispatched[-1], after_s=100.0)
    bench.submit(call("a", "v", x=value("1")), program="busy", tenant="busy")
    bench.submit(call("a", "v", x=value("1")), program="greedy2", tenant="greedy")
    bench.submit(call("b", "v", x=value("1")), program="busy2", tenant="busy")
    bench.finish(bench.dispatched[-1], after_s=1.0)
    assert bench.dispatched[-1].key.program == "busy2"


def test_what_is_held_over_for_a_program_is_let_go_when_it_ends() -> None:
    bench = Bench(GPU_LIKE)
    spec = function("Rules of this house. " * 30 + "{{x}} {{y}}", y=SHORT)
    turn = replace(call("turn", "v", x=value("hello")), function=spec.id)
    bench.post(ev.Submitted("p", functions=(spec,), calls=(turn,), closed=False))
    bench.run()
    (keep,) = [keep for keep in bench.of(ev.Keep) if isinstance(keep, ev.Keep)]
    assert keep.tier is Tier.DEVICE, "the program may go on with what it has read"
    bench.post(ev.Warmed(keep.prefix, "e0", 150))
    assert bench.scheduler.engines()[0].pinned_prefixes == 1
    bench.post(ev.Closed("p"))
    assert bench.scheduler.engines()[0].pinned_prefixes == 0
