"""The journal: every event that the scheduler took, in order. What is in it is true; what is not never happened.

A file is JSON lines. The first is the header, each other one event:

    {"v":1,"epoch_s":1767225600.0,"settings":{...},"sum":"8b5c1f02"}
    {"v":1,"seq":1,"t":0.0132,"type":"Submitted","event":{...},"sum":"5d0b77e1"}

`t` is the scheduler's time in seconds since the epoch of the journal. `sum` is the CRC-32 of the line up to it, so a
torn or damaged line is found before anything in it is believed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from parrot_server.core.events import Event
from parrot_server.core.settings import SchedulerSettings
from parrot_server.errors import JournalCorrupt

EVENT_TYPES: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Event)}
_SUM_BYTES = len(b',"sum":"00000000"}\n')
E = TypeVar("E")


class Header(BaseModel):
    """What a journal was recorded with: when its time began (Unix seconds), and settings that a replay needs too."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")
    v: Literal[1] = 1
    epoch_s: float
    settings: SchedulerSettings


class Record(BaseModel, Generic[E]):
    """One event, with its place in the journal and its time."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")
    v: Literal[1] = 1
    seq: int
    t: float
    type: str
    event: E


class Journal(Protocol):
    """Where events are written before anybody may see what came of them."""

    def append(self, now_s: float, event: Event) -> None:
        """Note an event; it is not safe yet."""
        ...

    async def commit(self) -> None:
        """Make all that was noted until now safe. Raises OSError when it cannot."""
        ...

    async def close(self) -> None:
        """Commit, and let the file go."""
        ...


class NullJournal:
    """Keeps nothing: what happened is in memory alone, and is gone with the server."""

    def append(self, now_s: float, event: Event) -> None:
        """Forget it."""

    async def commit(self) -> None:
        """There is nothing to wait for."""

    async def close(self) -> None:
        """There is nothing to close."""


class FileJournal:
    """Records events in a new file, to be read by `read`; safe against a crash of the server, not of the machine.

    Args:
        path: the file, which must not exist yet.
        header: goes first into it.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self._file = path.open("xb", buffering=0)
        self._seq = 0
        self._unwritten = bytearray(_sealed(header))

    def append(self, now_s: float, event: Event) -> None:
        """Note an event."""
        self._seq += 1
        self._unwritten += encode(self._seq, now_s, event)

    async def commit(self) -> None:
        """Hand what was noted to the operating system. Raises OSError; the next try goes on from there."""
        while self._unwritten:
            written = self._file.write(self._unwritten)
            del self._unwritten[:written]

    async def close(self) -> None:
        """Commit and close."""
        await self.commit()
        self._file.close()


def encode(seq: int, now_s: float, event: Event) -> bytes:
    """One event as a line of the file."""
    kind = type(event).__name__
    return _sealed(_record_type(kind).model_construct(seq=seq, t=now_s, type=kind, event=event))


def read(path: Path) -> tuple[Header, Iterator[tuple[float, Event]]]:
    """Read a journal: its header, and its events with their times, as the scheduler took them.

    Raises JournalCorrupt, from the iterator too, for a line that is torn, damaged, missing or of another version.
    """
    lines = _checked_lines(path)
    first = next(lines, None)
    if first is None:
        raise JournalCorrupt(f"{path} is empty: it is no journal")
    try:
        return Header.model_validate_json(first), _events(path, lines)
    except ValidationError as error:
        raise JournalCorrupt(f"{path}, line 1: not the header of a journal that this server reads") from error


def _events(path: Path, lines: Iterator[bytes]) -> Iterator[tuple[float, Event]]:
    for seq, line in enumerate(lines, 1):
        try:
            kind = Record[Any].model_validate_json(line).type
            record = _record_type(kind).model_validate_json(line)
        except (KeyError, ValidationError) as error:
            message = f"{path}, line {seq + 1}: not an event that this server reads"
            raise JournalCorrupt(message) from error
        if record.seq != seq:
            raise JournalCorrupt(f"{path}, line {seq + 1}: record {record.seq} stands where {seq} belongs")
        yield record.t, record.event


def _checked_lines(path: Path) -> Iterator[bytes]:
    """The lines without their sums."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            body = line[:-_SUM_BYTES]
            if _with_sum(body) != line:
                raise JournalCorrupt(f"{path}, line {number}: torn or damaged")
            yield body + b"}"


def _sealed(line: BaseModel) -> bytes:
    return _with_sum(line.model_dump_json().encode()[:-1])


def _with_sum(body: bytes) -> bytes:
    return body + b',"sum":"%08x"}\n' % zlib.crc32(body)


@cache
def _record_type(kind: str) -> type[Record[Any]]:
    return Record[EVENT_TYPES[kind]]  # type: ignore[valid-type]  # known at run time only
