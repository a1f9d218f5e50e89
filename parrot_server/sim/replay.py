"""A journal played again: the same events at the same times lead the scheduler to the same actions."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path

from parrot_server.core.events import Action, Event
from parrot_server.core.scheduler import Scheduler
from parrot_server.core.settings import SchedulerSettings
from parrot_server.journal import FileJournal, Header, read


def replay(path: Path) -> Iterator[tuple[float, Event, list[Action]]]:
    """Each event of a journal with its time, and what the scheduler does about it. Raises JournalCorrupt."""
    header, events = read(path)
    scheduler = Scheduler(header.settings)
    for now_s, event in events:
        yield now_s, event, scheduler.handle(event, now_s)


def digest(steps: Iterator[tuple[float, Event, list[Action]]]) -> tuple[int, int, str]:
    """How many events and actions there were, and the SHA-256 of the actions."""
    events = actions = 0
    total = hashlib.sha256()
    for now_s, _, done in steps:
        events += 1
        actions += len(done)
        total.update(f"{now_s!r} {done!r}\n".encode("utf-8", "surrogatepass"))
    return events, actions, total.hexdigest()


class Recorder:
    """Writes a simulation's events to a new journal. Its time begins at zero, so that two runs write the same bytes.

    Args:
        path: the file, which must not exist yet.
        settings: the scheduler's.
    """

    def __init__(self, path: Path, settings: SchedulerSettings) -> None:
        self._journal = FileJournal(path, Header(epoch_s=0.0, settings=settings))

    def observe(self, now_s: float, event: Event, actions: list[Action]) -> None:
        """Note an event."""
        self._journal.append(now_s, event)

    def close(self) -> None:
        """Write all that was noted."""
        asyncio.run(self._journal.close())
