"""Streams of text: what a generation has written so far, and how the readers of a variable follow it.

Nothing is queued for a reader. A reader is an offset into a text that is there once for all of them, so one that is
slow costs nothing and holds up nobody: it just reads more at a time.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from parrot_server.core.model import Failure, Value
from parrot_server.pulse import Pulse

BLOCK_CHARACTERS = 4096
DELTA_CHARACTERS = 16_384


class GrowingText:
    """The text of one attempt as it comes. Lengths and offsets count characters (Unicode code points)."""

    def __init__(self) -> None:
        self.length = 0
        self.length_bytes = 0
        self.given_up = False  # its attempt failed: nothing of it is part of a value
        self._blocks: list[str] = [""]

    def append(self, text: str) -> None:
        """Add text at the end."""
        self.length += len(text)
        self.length_bytes += len(text.encode())
        tail = self._blocks.pop() + text
        self._blocks += (tail[at : at + BLOCK_CHARACTERS] for at in range(0, len(tail), BLOCK_CHARACTERS))
        if not tail:
            self._blocks.append("")

    def read(self, offset: int, most: int) -> str:
        """At most so many characters from an offset on."""
        first, skip = divmod(offset, BLOCK_CHARACTERS)
        blocks = self._blocks[first : first + most // BLOCK_CHARACTERS + 2]
        return "".join(blocks)[skip : skip + most]

    def whole(self) -> str:
        """All of it."""
        return "".join(self._blocks)


@dataclass(frozen=True, slots=True)
class Delta:
    """More text, from `offset` on. All deltas since the last reset, joined, are the beginning of the value."""

    offset: int
    text: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Reset:
    """What was read so far is void: the text starts anew with this attempt."""

    attempt: int


StreamItem = Delta | Reset | Value | Failure


class VariableStream:
    """What readers of one variable follow: the text that is being written, then the outcome.

    `attempt` grows whenever the text starts anew. Where several calls race for the variable, one of them is shown.
    """

    def __init__(self, attempt: int = 0, outcome: Value | Failure | None = None) -> None:
        self.attempt = attempt
        self.outcome = outcome
        self._shown: GrowingText | None = None
        self._pulse = Pulse()

    def grow(self, text: GrowingText, attempt: int) -> None:
        """`text` has grown; show it, unless another is shown whose attempt goes on."""
        if self._shown is None or (self._shown is not text and self._shown.given_up):
            self.attempt = max(attempt, self.attempt + 1)
            self._shown = text
        if self._shown is text:
            self._pulse.beat()

    def finish(self, outcome: Value | Failure) -> None:
        """The variable is set. A value that does not go on from the shown text starts anew."""
        if isinstance(outcome, Value) and self._shown and not outcome.text.startswith(self._shown.whole()):
            self.attempt += 1
        self.outcome = outcome
        self._shown = None
        self._pulse.beat()

    async def finished(self) -> Value | Failure:
        """Wait for the outcome."""
        while self.outcome is None:
            await self._pulse.wait()
        return self.outcome

    async def follow(self, attempt: int = 0, offset: int = 0) -> AsyncGenerator[StreamItem, None]:
        """Deltas and resets as they come, then the outcome.

        Args:
            attempt, offset: where the reader stopped when it was here before.
        """
        while not isinstance(self.outcome, Failure):
            if attempt != self.attempt or offset > self._length():
                if offset:
                    yield Reset(self.attempt)
                attempt, offset = self.attempt, 0
            if text := self._read(offset):
                yield Delta(offset, text, attempt)
                offset += len(text)
            elif self.outcome is not None:
                yield self.outcome
                return
            else:
                await self._pulse.wait()
        yield self.outcome

    def _length(self) -> int:
        if isinstance(self.outcome, Value):
            return len(self.outcome.text)
        return self._shown.length if self._shown else 0

    def _read(self, offset: int) -> str:
        if isinstance(self.outcome, Value):
            return self.outcome.text[offset : offset + DELTA_CHARACTERS]
        return self._shown.read(offset, DELTA_CHARACTERS) if self._shown else ""
