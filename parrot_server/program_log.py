"""What happened in one program, for those who look on: the latest entries, each with its number, a reader's cursor."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from itertools import islice

from parrot_server.core.events import CallChanged, Resolve
from parrot_server.core.model import ProgramState
from parrot_server.pulse import Pulse

_BATCH = 256


@dataclass(frozen=True, slots=True)
class ProgramMoved:
    """The program went to another state."""

    state: ProgramState


@dataclass(frozen=True, slots=True)
class Lagged:
    """So many entries are gone before this reader came to them."""

    missed: int


Happening = ProgramMoved | CallChanged | Resolve


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry. A reader that comes back after `cursor` goes on with the next."""

    cursor: int
    at_s: float  # since the program was submitted
    what: Happening | Lagged


class ProgramLog:
    """The log of one program.

    Args:
        submitted_s: when the program was submitted, in the scheduler's time.
        most: so many entries are kept; a reader that needs older ones is told that it lagged.
    """

    def __init__(self, submitted_s: float, most: int) -> None:
        self._submitted_s = submitted_s
        self._entries: deque[Entry] = deque(maxlen=most)
        self._last = 0
        self._ended = False
        self._pulse = Pulse()

    def add(self, now_s: float, what: Happening) -> None:
        """Note what happened, at this time of the scheduler."""
        self._last += 1
        self._entries.append(Entry(self._last, now_s - self._submitted_s, what))
        self._pulse.beat()

    def end(self) -> None:
        """No more will happen; readers are done when they have read the rest."""
        self._ended = True
        self._pulse.beat()

    async def follow(self, cursor: int = 0) -> AsyncGenerator[Entry, None]:
        """The entries after a cursor, as they come, until the log ends. One from the future starts at the beginning."""
        cursor = 0 if cursor > self._last else cursor
        while True:
            oldest = self._last - len(self._entries)
            if cursor < oldest:
                yield Entry(oldest, self._entries[0].at_s, Lagged(oldest - cursor))
                cursor = oldest
            elif batch := list(islice(self._entries, cursor - oldest, cursor - oldest + _BATCH)):
                for entry in batch:
                    yield entry
                cursor = batch[-1].cursor
            elif self._ended:
                return
            else:
                await self._pulse.wait()
