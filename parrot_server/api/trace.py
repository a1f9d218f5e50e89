"""A program's steps on a time line, in the trace event format that Perfetto and chrome://tracing open.

Each engine is a process of the trace, and what waits for one is another; calls that overlap are on rows of their own. A call's span
holds spans of its phases, and arrows follow the graph's edges.

Source: Google, "Trace Event Format" (2016): complete events, flow events and metadata events.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any

from parrot_sdk.wire import TraceReply
from parrot_server.core.model import CallState, Op
from parrot_server.core.views import GraphView, NodeView

TraceEvent = dict[str, Any]
WAITING = "waiting for an engine"
SERVER = "server"  # where transforms run, and calls are spread over lists

_Shown = dict[str, tuple[TraceEvent, TraceEvent]]
"""The first and the last span of each step."""


class _Rows:
    """The rows of one process of the trace: spans on the same row do not overlap."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._taken: list[tuple[int, int]] = []  # heap: until when, row
        self._free: list[int] = []  # heap

    def row(self, begin_us: int, end_us: int) -> int:
        """The first row that is free by then, taken until the end. Spans come in the order in which they begin."""
        while self._taken and self._taken[0][0] <= begin_us:
            heappush(self._free, heappop(self._taken)[1])
        row = heappop(self._free) if self._free else len(self._taken)
        heappush(self._taken, (end_us, row))
        return row


def chrome_trace(graph: GraphView, now_s: float) -> TraceReply:
    """The trace of a program.

    Args:
        graph: its steps. Of one that was tried again, the last attempt is shown; what came before counts as waiting.
        now_s: where the spans of what still waits or runs end, in the core's seconds.
    """
    places: dict[str, _Rows] = {}
    shown: _Shown = {}
    events: list[TraceEvent] = []
    for node, place, begin_us, end_us in sorted(_spans(graph, now_s), key=lambda span: span[2]):
        rows = places.setdefault(place, _Rows(len(places)))
        at = {"pid": rows.pid, "tid": rows.row(begin_us, end_us)}
        span = _span(node.node, begin_us, end_us) | at | {"cat": node.op.value, "args": _facts(node)}
        first, _ = shown.get(node.node, (span, span))
        shown[node.node] = (first, span)
        events.append(span)
        if place not in (WAITING, SERVER):
            events += [phase | at for phase in _phases(node, end_us)]
    names = [
        {"ph": "M", "name": "process_name", "pid": rows.pid, "tid": 0, "args": {"name": place}}
        for place, rows in places.items()
    ]
    return TraceReply(traceEvents=[*names, *events, *_arrows(graph, shown)], displayTimeUnit="ms")


def _spans(graph: GraphView, now_s: float) -> Iterator[tuple[NodeView, str, int, int]]:
    """Each stay of a step somewhere: the step, the place, and its begin and end in microseconds."""
    for node in graph.nodes:
        timing = node.timing
        if timing.ready_s is None:
            continue
        ready_us = _us(node, timing.ready_s)
        end_us = max(ready_us, _us(node, now_s if timing.ended_s is None else timing.ended_s))
        if node.engine is None or timing.sent_s is None:
            # A call that is done without an engine was spread over the elements of a list.
            waited = node.op is Op.GENERATE and node.state is not CallState.DONE
            yield node, WAITING if waited else SERVER, ready_us, end_us
            continue
        sent_us = _us(node, timing.sent_s)
        if sent_us > ready_us:
            yield node, WAITING, ready_us, sent_us
        yield node, f"engine {node.engine}", sent_us, end_us


def _phases(node: NodeView, end_us: int) -> Iterator[TraceEvent]:
    """What an engine did with a step, one after another."""
    timing = node.timing
    marks = [("in the engine's queue", timing.sent_s), ("prefill", timing.started_s), ("decode", timing.first_token_s)]
    reached = [(name, _us(node, moment_s)) for name, moment_s in marks if moment_s is not None]
    for (name, begin_us), (_, until_us) in zip(reached, [*reached[1:], ("", end_us)], strict=True):
        yield _span(name, begin_us, until_us)


def _arrows(graph: GraphView, shown: _Shown) -> Iterator[TraceEvent]:
    for number, (source, target) in enumerate(graph.edges):
        if source in shown and target in shown:
            (_, tail), (head, _) = shown[source], shown[target]
            about = {"name": "value", "cat": "edge", "id": number}
            last_us = tail["ts"] + max(0, tail["dur"] - 1)  # an arrow begins inside its span
            if head["ts"] < last_us:
                continue  # a call that was spread over a list began before its elements ended
            yield about | {"ph": "s", "ts": last_us, "pid": tail["pid"], "tid": tail["tid"]}
            yield about | {"ph": "f", "bp": "e", "ts": head["ts"], "pid": head["pid"], "tid": head["tid"]}


def _facts(node: NodeView) -> dict[str, Any]:
    """What is shown of a step when its span is chosen. No prompt and no value."""
    facts = {
        "function": node.function,
        "state": node.state.value,
        "objective": node.objective.value,
        "group": node.group,
        "attempt": node.attempt,
        "prompt_tokens": node.usage.prompt_tokens,
        "cached_tokens": node.usage.cached_tokens,
        "output_tokens": node.usage.output_tokens,
        "why": node.why,
        "error": node.failure.type if node.failure else None,
    }
    return {name: fact for name, fact in facts.items() if fact not in (None, "")}


def _span(name: str, begin_us: int, end_us: int) -> TraceEvent:
    return {"ph": "X", "name": name, "ts": begin_us, "dur": end_us - begin_us}


def _us(node: NodeView, moment_s: float) -> int:
    """Microseconds since the program was submitted."""
    return round(1e6 * (moment_s - node.timing.submitted_s))
