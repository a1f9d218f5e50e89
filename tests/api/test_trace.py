"""The trace of a program: what a viewer is told of each step, and that it can draw it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from parrot_sdk.wire import TraceReply
from parrot_server.api.trace import SERVER, WAITING, chrome_trace
from parrot_server.core.model import CallState, Failure, Objective, Op, StepKey, Usage
from parrot_server.core.views import GraphView, NodeView, Timing
from tests.serving import echo, program, serving

Event = dict[str, Any]


def node(name: str, *moments_s: float | None, op: Op = Op.GENERATE, engine: str | None = "e") -> NodeView:
    """A step that was ready, sent, started, had its first token and ended then; the program was submitted at 100."""
    timing = Timing(100.0, *moments_s)
    failure = Failure("overloaded", "no room", name) if name == "failed" else None
    return NodeView(
        StepKey("p", name, 0), name, op, "f", CallState.RUNNING, Objective.BATCH, None, 0.0, 1, engine, Usage(9, 3, 2), timing, "", failure
    )  # fmt: skip


def spans(trace: TraceReply, name: str) -> list[Event]:
    return [event for event in trace.trace_events if event["ph"] == "X" and event["name"] == name]


def places(trace: TraceReply) -> dict[int, str]:
    return {event["pid"]: event["args"]["name"] for event in trace.trace_events if event["ph"] == "M"}


def where(trace: TraceReply, name: str) -> list[tuple[str, int, int]]:
    return [(places(trace)[span["pid"]], span["ts"], span["ts"] + span["dur"]) for span in spans(trace, name)]


def test_a_step_waits_then_runs_and_its_phases_fill_its_span() -> None:
    trace = chrome_trace(GraphView((node("a", 101.0, 102.0, 102.5, 103.0, 105.0),), ()), 200.0)
    assert where(trace, "a") == [(WAITING, 1_000_000, 2_000_000), ("engine e", 2_000_000, 5_000_000)]
    assert where(trace, "in the engine's queue") == [("engine e", 2_000_000, 2_500_000)]
    assert where(trace, "prefill") == [("engine e", 2_500_000, 3_000_000)]
    assert where(trace, "decode") == [("engine e", 3_000_000, 5_000_000)]
    facts = spans(trace, "a")[1]["args"]
    assert (facts["prompt_tokens"], facts["cached_tokens"], facts["output_tokens"]) == (9, 3, 2)


def test_what_has_not_ended_is_drawn_up_to_now() -> None:
    running, waiting = node("r", 101.0, 101.0, 102.0), node("w", 103.0, engine=None)
    trace = chrome_trace(GraphView((running, waiting, node("later")), ()), 110.0)
    assert where(trace, "r") == [("engine e", 1_000_000, 10_000_000)]
    assert where(trace, "prefill") == [("engine e", 2_000_000, 10_000_000)]
    assert where(trace, "w") == [(WAITING, 3_000_000, 10_000_000)]
    assert where(trace, "later") == []


def test_a_transform_runs_in_the_server_and_a_failure_is_named() -> None:
    transform = node("t", 101.0, None, None, None, 101.5, op=Op.TRANSFORM, engine=None)
    failed = node("failed", 101.0, 101.0, None, None, 102.0)
    trace = chrome_trace(GraphView((transform, failed), ()), 110.0)
    assert where(trace, "t") == [(SERVER, 1_000_000, 1_500_000)]
    assert spans(trace, "failed")[0]["args"]["error"] == "overloaded"


def rows(trace: TraceReply) -> Iterator[list[Event]]:
    whole = [event for event in trace.trace_events if event["ph"] == "X" and "args" in event]
    for row in {(span["pid"], span["tid"]) for span in whole}:
        yield [span for span in whole if (span["pid"], span["tid"]) == row]


def test_spans_on_one_row_do_not_overlap_and_rows_are_used_again() -> None:
    nodes = tuple(node(f"{i}", 101.0 + i, 101.0 + i, 101.0 + i, 101.5 + i, 103.5 + i) for i in range(9))
    trace = chrome_trace(GraphView(nodes, ()), 200.0)
    for row in rows(trace):
        assert all(one["ts"] + one["dur"] <= other["ts"] for one, other in pairwise(row))
    assert len(list(rows(trace))) == 3


def test_an_arrow_leads_from_inside_its_source_to_the_begin_of_its_target() -> None:
    first, second = node("a", 101.0, 101.0, 101.0, 102.0, 103.0), node("b", 103.0, 104.0, 104.0, 105.0, 106.0)
    trace = chrome_trace(GraphView((first, second, node("later")), (("a", "b"), ("b", "later"))), 200.0)
    tail, head = (next(event for event in trace.trace_events if event["ph"] == kind) for kind in "sf")
    assert (tail["ts"], head["ts"], tail["id"]) == (2_999_999, 3_000_000, head["id"])
    assert places(trace)[tail["pid"]] == "engine e"
    assert places(trace)[head["pid"]] == WAITING
    assert sum(event["ph"] in "sf" for event in trace.trace_events) == 2


def test_it_is_served() -> None:
    with serving() as server:
        made = server.submit(program(echo("a", "go", "v"), echo("b", {"var": "v"}, "w")))
        server.http.get(f"/v1/programs/{made['id']}/variables/w", params={"wait": 30})
        reply = server.http.get(f"{made['links']['trace']}")
    assert reply.status_code == 200
    trace = TraceReply.model_validate_json(reply.content)
    assert all(event["dur"] >= 0 for event in trace.trace_events if event["ph"] == "X")
    assert [place.startswith("engine ") for place, _, _ in where(trace, "a")][-1:] == [True]
    assert '"traceEvents":[' in reply.text


def test_no_arrow_runs_backward_to_a_call_that_was_spread_over_a_list() -> None:
    spread = node("each", 101.0, None, None, None, 105.0, engine=None)
    element = node("each.0", 101.0, 102.0, 102.0, 103.0, 104.5)
    trace = chrome_trace(GraphView((spread, element), (("each.0", "each"),)), 200.0)
    assert not [event for event in trace.trace_events if event["ph"] in "sf"]
