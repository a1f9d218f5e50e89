"""Streams over real sockets: order, resumption, resets, readers that leave and readers that do not read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from parrot_server.api.sse import EventStream
from parrot_server.engines.base import Request
from parrot_server.engines.fake import Answer, FakeEngine
from parrot_server.errors import EngineError, Fault
from tests.serving import SSE, Server, echo, program, serving, until

READING = "EventStream.__call__"
WAITING = "Caller.while_here"
BROKEN = EngineError(Fault.ENGINE, "stream_broken", "cut")
ODD = 'a\u2028b\x00c\x1f"\\\r\nd\td: e\n\nf😀'


class Script:
    """Answers by the first word of what is asked; `FLAKY` breaks off once."""

    def __init__(self) -> None:
        self.flaky = 0

    def __call__(self, request: Request) -> Answer | None:
        text = "".join(piece.text for piece in request.prompt.pieces)
        if "TICKS" in text:
            return Answer(["t1 ", "t2 ", "t3 ", "t4"], delays_s=[0.0, 0.3, 0.3, 0.3])
        if "LONG" in text:
            return Answer("word " * 5000, delays_s=0.02)
        if "BIG" in text:
            return Answer(["x" * 10_000] * 1_000)
        if "FLAKY" in text:
            self.flaky += 1
            return Answer("hello wo", then=BROKEN, delays_s=0.05) if self.flaky == 1 else Answer("hello world")
        return Answer(list(ODD)) if "ODD" in text else None


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(FakeEngine(script=Script()), value_bytes=20_000_000, write_timeout_s=1.5, log_entries=30) as running:
        yield running


def stream_path(reply: dict[str, Any], name: str = "v", more: str = "") -> str:
    return f"/v1/programs/{reply['id']}/variables/{name}/stream{more}"


def text_of(events: Iterable[SSE]) -> str:
    """What a reader holds who follows the rules."""
    held = ""
    for event in events:
        if event.name == "reset":
            held = ""
        elif event.name == "delta":
            assert event.data["offset"] == len(held)
            held += event.data["text"]
    return held


def test_the_first_event_arrives_before_the_last_is_made(server: Server) -> None:
    reply = server.submit(program(echo("a", "TICKS", "v")))
    arrivals = [(event, time.monotonic()) for event in server.open(stream_path(reply)).events()]
    assert [event.name for event, _ in arrivals] == ["delta"] * 4 + ["value"]
    assert text_of(event for event, _ in arrivals) == "t1 t2 t3 t4" == arrivals[-1][0].data["value"]
    assert arrivals[-1][1] - arrivals[0][1] > 0.6
    assert all(later[1] - earlier[1] > 0.2 for earlier, later in pairwise(arrivals[:4]))


def test_text_of_any_kind_comes_through(server: Server) -> None:
    reply = server.submit(program(echo("a", "ODD", "v")))
    for _ in range(2):  # while it is written, and after
        *deltas, last = server.open(stream_path(reply)).events()
        assert text_of(deltas) == ODD == last.data["value"]
    assert server.value(reply["id"], "v") == ODD
    assert server.http.get(f"/v1/programs/{reply['id']}").json()["usage"]["output_tokens"] == len(ODD)


def test_a_retry_after_text_resets_its_readers(server: Server) -> None:
    reply = server.submit(program(echo("a", "FLAKY", "v")))
    events = list(server.open(stream_path(reply)).events())
    assert "reset" in [event.name for event in events]
    assert text_of(events) == "hello world" == events[-1].data["value"]


def test_a_reader_goes_on_where_it_stopped(server: Server) -> None:
    reply = server.submit(program(echo("a", "TICKS", "v")))
    reader = server.open(stream_path(reply))
    first = next(reader.events())
    reader.leave()
    rest = list(server.open(stream_path(reply), f"Last-Event-ID: {first.id}").events())
    assert rest[0].data["offset"] == len(first.data["text"])
    assert first.data["text"] + "".join(event.data["text"] for event in rest[:-1]) == "t1 t2 t3 t4"
    stale = list(server.open(stream_path(reply), "Last-Event-ID: 7:99").events())
    assert stale[0].name == "reset"
    assert text_of(stale) == "t1 t2 t3 t4"


def test_a_failed_variable_ends_its_stream_with_the_problem(server: Server) -> None:
    reply = server.submit(program(echo("a", "LONG", "v")))
    reader = server.open(stream_path(reply)).events()
    assert next(reader).name == "delta"
    server.http.delete(f"/v1/programs/{reply['id']}")
    *_, last = reader
    assert (last.name, last.data["type"], last.data["status"]) == ("error", "cancelled", 424)
    (late,) = server.open(stream_path(reply)).events()
    assert (late.name, late.data["type"]) == ("error", "cancelled")


def test_a_list_that_was_put_streams_as_its_value(server: Server) -> None:
    reply = server.submit(program(echo("a", {"var": "x"}, "v"), variables={"x": None}))
    reader = server.open(stream_path(reply, "x"))
    assert reader.status == 200
    server.http.put(f"/v1/programs/{reply['id']}/variables/x", json={"value": ["é", "b" * 50_000]})
    *_, last = reader.events()
    assert (last.name, last.data["value"]) == ("value", ["é", "b" * 50_000])


def test_the_events_of_a_program_can_be_resumed_at_any_point(server: Server) -> None:
    reply = server.submit(program(echo("a", "go", "v"), echo("b", {"var": "v"}, "w")), wait=20)
    path = f"/v1/programs/{reply['id']}/events"
    events = list(server.open(path).events())
    assert events[0].name == "program"
    assert [event.data["state"] for event in events if event.name == "program"] == ["running", "done"]
    states = [event.data["state"] for event in events if event.name == "call" and event.data["call"] == "b"]
    assert states == ["ready", "sent", "running", "done"]
    assert {event.data["name"] for event in events if event.name == "variable"} == {"v", "w"}
    for position, event in enumerate(events):
        assert list(server.open(path, f"Last-Event-ID: {event.id}").events()) == events[position + 1 :]


def test_a_live_program_s_events_come_as_they_happen(server: Server) -> None:
    reply = server.submit({"close": False})
    events = server.open(f"/v1/programs/{reply['id']}/events").events()
    assert next(events).data["state"] == "open"
    body = program(echo("a", "go", "v"))
    assert server.http.post(f"/v1/programs/{reply['id']}/calls", json={**body, "close": True}).status_code == 201
    *_, last = events
    assert (last.name, last.data["state"]) == ("program", "done")


def test_a_reader_who_comes_too_late_is_told_what_he_missed(server: Server) -> None:
    reply = server.submit(program(*(echo(f"c{i}", "go", f"v{i}") for i in range(20))), wait=20)
    until(lambda: server.http.get(f"/v1/programs/{reply['id']}").json()["state"] == "done")
    first, *rest = server.open(f"/v1/programs/{reply['id']}/events").events()
    assert first.name == "lagged"
    assert first.data["missed"] == int(first.id) == int(rest[0].id) - 1
    assert len(rest) == 30
    assert rest[-1].data["state"] == "done"


@pytest.mark.parametrize("wanted", [False, True])
def test_a_reader_that_leaves_cancels_only_if_he_asked_so(server: Server, wanted: bool) -> None:
    aborts = len(server.engine.aborts)
    reply = server.submit(program(echo("a", "LONG", "v")))
    reader = server.open(stream_path(reply, more="?cancel_on_disconnect=true" if wanted else ""))
    events = reader.events()
    for _ in range(3):
        next(events)
    assert READING in server.tasks()
    reader.leave()
    until(lambda: READING not in server.tasks(), "the end of the reader's task")
    if wanted:
        until(lambda: len(server.engine.aborts) == aborts + 1, "the abort")
        assert server.http.get(f"/v1/programs/{reply['id']}").json()["state"] == "cancelled"
    else:
        assert len(next(server.open(stream_path(reply)).events()).data["text"]) > 0
        assert server.http.get(f"/v1/programs/{reply['id']}").json()["state"] == "running"
        assert len(server.engine.aborts) == aborts
        server.http.delete(f"/v1/programs/{reply['id']}")


@pytest.mark.parametrize("wanted", [False, True])
def test_a_long_poll_that_is_hung_up_frees_its_wait(server: Server, wanted: bool) -> None:
    reply = server.submit(program(echo("a", "LONG", "v")))
    more = "&cancel_on_disconnect=true" if wanted else ""
    readers = [server.open(f"/v1/programs/{reply['id']}/variables/v?wait=300{more}") for _ in range(10)]
    until(lambda: WAITING in server.tasks(), "a waiting task")
    for reader in readers:
        reader.leave()
    until(lambda: WAITING not in server.tasks(), "the end of all waiting tasks")
    state = server.http.get(f"/v1/programs/{reply['id']}").json()["state"]
    assert state == ("cancelled" if wanted else "running")
    server.http.delete(f"/v1/programs/{reply['id']}")


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc to see resident memory")
def test_readers_that_do_not_read_hold_up_nobody_and_cost_little(server: Server) -> None:
    warm = server.submit(program(echo("a", "BIG", "v")))
    assert len(server.value(warm["id"], "v")) == 10_000_000
    reply = server.submit(program(echo("a", {"var": "x"}, "v"), variables={"x": None}))
    asleep = [server.open(stream_path(reply), receive_bytes=4096) for _ in range(30)]
    assert {reader.status for reader in asleep} == {200}
    assert READING in server.tasks()
    before = resident_bytes()
    server.http.put(f"/v1/programs/{reply['id']}/variables/x", json={"value": "BIG"})
    lengths = sum(len(event.data.get("text", "")) for event in server.open(stream_path(reply)).events())
    assert lengths == 10_000_000
    grown = resident_bytes() - before
    assert grown < 60_000_000, f"{grown:,} bytes; thirty queues of ten megabytes would be 300 million"
    print(f"{grown:,} bytes for thirty readers")
    until(lambda: READING not in server.tasks(), "the end of the readers' tasks", 10)
    *_, last = server.open(stream_path(reply), "Last-Event-ID: 1:9999990").events()
    assert len(last.data["value"]) == 10_000_000


def test_two_streams_do_not_disturb_each_other(server: Server) -> None:
    replies = [server.submit(program(echo("a", f"TICKS {i}", "v"))) for i in range(2)]
    readers = [server.open(stream_path(reply)).events() for reply in replies]
    taken: list[list[SSE]] = [[], []]
    for _ in range(5):
        for place, reader in zip(taken, readers, strict=True):
            place.append(next(reader))
    assert [text_of(events) for events in taken] == ["t1 t2 t3 t4"] * 2


def test_a_long_log_and_a_fast_reader_leave_others_their_turn() -> None:
    async def events() -> AsyncGenerator[Iterator[bytes], None]:
        for number in range(5_000):
            yield iter([b"event: call\ndata: %d\n\n" % number])

    async def main() -> None:
        turns = written = 0
        over = asyncio.Event()

        async def send(message: Any) -> None:
            nonlocal written
            written += 1

        async def receive() -> Any:
            await over.wait()

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async def gone() -> None:
            raise AssertionError("nobody left")

        other = asyncio.create_task(others())
        await EventStream(events(), asyncio.Event(), 5.0, gone)({"type": "http"}, receive, send)
        other.cancel()
        assert written > 5_000
        assert turns > 200

    asyncio.run(main())


@pytest.mark.parametrize("path", ["/variables/v/stream", "/events"])
def test_a_stream_of_text_that_the_end_of_the_server_cuts_short_says_so(path: str) -> None:
    with serving(FakeEngine(script=lambda request: Answer(["x"], then="hang"))) as server:
        reply = server.submit(program(echo("a", "x", "v")))
        reader = server.open(f"/v1/programs/{reply['id']}{path}")
        events = reader.events()
        first = next(events)
        server.readers.clear()  # the server goes first
    *_, last = [first, *events]
    assert (last.name == "error") == path.endswith("stream")
    if last.name == "error":
        assert (last.data["type"], last.data["status"], last.data["retryable"]) == ("closing", 503, True)
    reader.leave()


def test_half_an_event_is_followed_by_none() -> None:
    sent: list[bytes] = []
    closing = asyncio.Event()

    async def events() -> AsyncGenerator[Iterator[bytes], None]:
        yield iter([b"event: value\n"] * 100)

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))
        closing.set()
        await asyncio.sleep(0)

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def never() -> None:
        raise AssertionError("nobody left")

    asyncio.run(EventStream(events(), closing, 1.0, never, b"farewell")({}, receive, send))
    assert sent[-1] == b""
    assert b"farewell" not in sent
