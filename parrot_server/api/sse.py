"""Server-sent events over plain ASGI: one reader, one connection, nothing queued.

The next event is made only when the connection has taken the one before, so a reader that does not read holds a few hundred
kilobytes at the most. After `write_timeout_s` without taking anything it is sent away; it may come back with `Last-Event-ID`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

log = logging.getLogger("parrot")
PIECE_CHARACTERS = 16_384
PING_S = 15.0
TURN_PIECES = 16  # then others have their turn


def event(name: str, data: Mapping[str, object], id: str = "") -> Iterator[bytes]:
    """One event as bytes."""
    yield from _event(name, id, iter([_json(data)]))


def event_with_value(
    name: str, data: Mapping[str, object], value: str | Sequence[str], id: str = ""
) -> Iterator[bytes]:
    """One event whose object also has a `value`, as bytes in pieces, since a value may be long."""
    yield from _event(name, id, _json_with_value(data, value))


class EventStream(Response):
    """Sends events until there are no more, the reader leaves or stops reading, or the server closes.

    Args:
        events: the events, each as bytes in pieces. Closed in any case.
        closing: set when the server closes.
        write_timeout_s: how long a reader may take nothing.
        on_gone: called when the reader has left before the end.
        farewell: an event for a reader whose stream is cut short since the server closes.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[Iterator[bytes], None],
        closing: asyncio.Event,
        write_timeout_s: float,
        on_gone: Callable[[], Awaitable[None]],
        farewell: bytes = b"",
    ) -> None:
        self.status_code = 200
        self.background = None
        self._events = events
        self._closing = closing
        self._write_timeout_s = write_timeout_s
        self._on_gone = on_gone
        self._farewell = farewell
        self._in_event = False  # part of an event was sent, and the rest was not
        self.init_headers({"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the reader."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        sending = asyncio.create_task(self._send_events(send))
        pinging = asyncio.create_task(self._ping(send))
        leaving = asyncio.create_task(_disconnect(receive))
        closing = asyncio.create_task(self._closing.wait())
        tasks = [sending, pinging, leaving, closing]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            left = leaving.done() and leaving.exception() is None  # not one whose body is no good
        finally:
            for task in tasks:
                task.cancel()
            sent, pinged, *_ = await asyncio.gather(*tasks, return_exceptions=True)
        if left or isinstance(sent, TimeoutError) or isinstance(pinged, TimeoutError):
            if not left:
                log.warning("a reader took nothing for %g s and was sent away", self._write_timeout_s)
            await self._on_gone()
            return
        if isinstance(sent, Exception):
            raise sent
        if sent is not None:  # cut short, since the server closes
            await self._write(send, b"" if self._in_event else self._farewell, more=False)

    async def _send_events(self, send: Send) -> None:
        written = 0
        async with aclosing(self._events):
            async for pieces in self._events:
                self._in_event = True
                for piece in pieces:
                    await self._write(send, piece)
                    written += 1
                    if written % TURN_PIECES == 0:  # a reader who is fast enough never makes us wait
                        await asyncio.sleep(0)
                self._in_event = False
        await self._write(send, b"", more=False)

    async def _ping(self, send: Send) -> None:
        """Comments now and then, so that nobody on the way thinks that the connection is idle."""
        while True:
            await asyncio.sleep(PING_S)
            await self._write(send, b": ping\n\n")

    async def _write(self, send: Send, body: bytes, more: bool = True) -> None:
        async with asyncio.timeout(self._write_timeout_s):
            await send({"type": "http.response.body", "body": body, "more_body": more})


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _event(name: str, id: str, data: Iterator[str]) -> Iterator[bytes]:
    head = f"id: {id}\n" if id else ""
    held = f"{head}event: {name}\ndata: "
    for text in data:
        held += text
        if len(held) >= PIECE_CHARACTERS:
            yield held.encode()
            held = ""
    yield f"{held}\n\n".encode()


def _json(data: object) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def _json_with_value(data: Mapping[str, object], value: str | Sequence[str]) -> Iterator[str]:
    yield _json(data)[:-1] + ',"value":'
    if isinstance(value, str):
        yield from _json_string(value)
    else:
        for number, item in enumerate(value):
            yield "," if number else "["
            yield from _json_string(item)
        yield "]" if value else "[]"
    yield "}"


def _json_string(text: str) -> Iterator[str]:
    yield '"'
    for at in range(0, len(text), PIECE_CHARACTERS):
        yield _json(text[at : at + PIECE_CHARACTERS])[1:-1]
    yield '"'
