"""Streamed text, and what becomes of it when a call is tried again in the middle."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from parrot_sdk.errors import StreamReset
from parrot_sdk.submission import failure_of
from parrot_sdk.wire import DeltaReply, ResetReply, VariableReply

if TYPE_CHECKING:
    from parrot_sdk.variable import Variable

VOID: Final = object()
"""Stands in a stream of texts where all before it is void."""


class TextStream:
    """The pieces of one variable's text; iterate over it with `for` or `async for`. Leaving early is fine."""

    def __init__(self, variable: Variable[Any], on_reset: Callable[[], None] | None) -> None:
        self._variable = variable
        self._on_reset = on_reset

    def __iter__(self) -> Iterator[str]:
        connection = self._variable.program.client.connection
        reading = _Reading(self._pieces())
        try:
            while piece := connection.run(reading.next()):
                yield from self._hand_out(piece)
        finally:
            connection.run(reading.close())

    async def __aiter__(self) -> AsyncIterator[str]:
        connection = self._variable.program.client.connection
        reading = _Reading(self._pieces())
        try:
            while piece := await connection.hand_over(reading.next()):
                for text in self._hand_out(piece):
                    yield text
        finally:
            await connection.hand_over(reading.close())

    def _hand_out(self, piece: object) -> Iterator[str]:
        if isinstance(piece, str):
            yield piece
        elif self._on_reset is not None:
            self._on_reset()
        else:
            name = self._variable.name
            raise StreamReset(
                f"the text of variable {name!r} begins anew: its call was tried again; use get(), or on_reset"
            )

    async def _pieces(self) -> AsyncGenerator[object, None]:
        transcript = Transcript()
        async with aclosing(self._variable.program.submission.events(self._variable.name)) as events:
            async for reply in events:
                if isinstance(reply, VariableReply) and (failure := failure_of(reply, self._variable.call)):
                    raise failure
                for piece in transcript.feed(reply):
                    yield piece


class _Reading:
    """Reads a generator in the client's loop. It can be closed also where its reader gave up in the middle of a piece."""

    def __init__(self, pieces: AsyncGenerator[object, None]) -> None:
        self._pieces = pieces
        self._task: asyncio.Task[Any] | None = None

    async def next(self) -> object:
        """The next piece, None after the last."""
        self._task = asyncio.current_task()
        try:
            return await anext(self._pieces, None)
        finally:
            self._task = None

    async def close(self) -> None:
        """End what is read, for a generator that runs cannot be closed, and close."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._pieces.aclose()


class Transcript:
    """What was handed out of a text, against what the server sends, attempt after attempt and connection after connection.

    Pieces that were handed out are not handed out again as long as a new attempt (or a stream that was opened anew) repeats
    them; where it does not, VOID comes first.
    """

    def __init__(self) -> None:
        self._parts: list[str] = []  # what was handed out
        self._handed_out_chars = 0
        self._read_chars = 0  # how much of the present attempt was read; it equals the beginning of what was handed out
        self._attempt = 0

    def feed(self, reply: DeltaReply | ResetReply | VariableReply) -> Iterator[object]:
        """The pieces to hand out now: texts that are not empty, or VOID."""
        if isinstance(reply, VariableReply):
            value = reply.value if isinstance(reply.value, str) else json.dumps(reply.value, ensure_ascii=False)
            self._read_chars = 0
            yield from self._advance(value)
            if len(value) < self._handed_out_chars:
                yield from self._start_again(value)
            return
        if reply.attempt != self._attempt or isinstance(reply, ResetReply):
            self._attempt = reply.attempt
            self._read_chars = 0
        if isinstance(reply, DeltaReply) and reply.offset <= self._read_chars:  # past a gap, the value brings the rest
            yield from self._advance(reply.text[self._read_chars - reply.offset :])

    def _advance(self, text: str) -> Iterator[object]:
        at = self._read_chars
        self._read_chars += len(text)
        known = self._handed_out()[at : at + len(text)] if at < self._handed_out_chars else ""
        if not text.startswith(known):
            yield from self._start_again(self._handed_out()[:at] + text)
        elif len(text) > len(known):
            yield self._keep(text[len(known) :])

    def _start_again(self, text: str) -> Iterator[object]:
        self._parts = []
        self._handed_out_chars = 0
        yield VOID
        if text:
            yield self._keep(text)

    def _keep(self, text: str) -> str:
        self._parts.append(text)
        self._handed_out_chars += len(text)
        return text

    def _handed_out(self) -> str:
        self._parts = ["".join(self._parts)]
        return self._parts[0]
