"""The wire of the scripted HTTP server: event streams, and what can befall them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

Body = dict[str, Any]
MID_STREAM = ("cut", "stall", "malformed", "error_event")


@dataclass(frozen=True, slots=True)
class Wire:
    """How one generation goes over the wire.

    Args:
        status: anything but 200 is answered at once, with `headers` and `body`.
        split_bytes: every write is of so many bytes, characters or not.
        fault: what happens to a stream after `after` pieces of text: the connection is cut, nothing more comes, a line is no
            JSON, an error event comes, or the end lacks its `[DONE]` or its finish reason.
        usage: where usage stands: in each chunk, in the last, in none; None: as the server's flavour does when asked.
        reasoning: text that comes as `reasoning_content` before the answer.
        null_content: text pieces are followed by chunks whose content is null.
    """

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: str = ""
    split_bytes: int | None = None
    fault: Literal["cut", "stall", "malformed", "error_event", "no_done", "no_finish"] | None = None
    after: int = 2
    usage: Literal["each", "last", "none"] | None = None
    reasoning: tuple[str, ...] = ()
    null_content: bool = False


class Cut(Exception):
    """Raised inside a response to break its connection off."""


def json_response(content: Any, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """JSON with its characters as they are, as most servers send it."""
    text = json.dumps(content, ensure_ascii=False)
    return Response(text.encode(), status, {"content-type": "application/json", **dict(headers)})


def problem(status: int, message: str, type: str) -> Response:
    """An error as OpenAI's routes answer it."""
    return json_response({"error": {"message": message, "type": type, "param": None, "code": status}}, status)


class EventStream(Response):
    """Server-sent events that end when the client goes away, whatever they wait for then.

    Args:
        events: the data of each event.
        split_bytes: every write is of so many bytes.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[str, None], split_bytes: int | None) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._events = events
        self._split_bytes = split_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the events end or the client is gone."""
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(_left(receive))
        await asyncio.wait([sending, leaving], return_when=asyncio.FIRST_COMPLETED)
        finished = sending.done()
        for task in (sending, leaving):
            task.cancel()
        outcome, _ = await asyncio.gather(sending, leaving, return_exceptions=True)
        if finished and isinstance(outcome, BaseException):
            raise outcome

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with aclosing(self._events) as events:
            async for data in events:
                await self._write(send, f"data: {data}\n\n".encode())
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, send: Send, data: bytes) -> None:
        size = self._split_bytes or len(data)
        for at in range(0, len(data), size):
            piece: Message = {"type": "http.response.body", "body": data[at : at + size], "more_body": True}
            await send(piece)


async def break_stream(wire: Wire) -> str:
    """Do what breaks a stream in its middle; returns the line that does, if a line does."""
    if wire.fault == "cut":
        raise Cut
    if wire.fault == "stall":
        await asyncio.Event().wait()
    if wire.fault == "malformed":
        return '{"text": "a'
    return json.dumps({"error": {"message": "the engine failed", "type": "InternalServerError", "code": 500}})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
