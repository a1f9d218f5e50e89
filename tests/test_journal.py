"""The journal gives back exactly what was put in, and believes nothing that is damaged."""

from __future__ import annotations

import asyncio
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parrot_server.core.events import Closed, Event, Finished, Keep, Submitted, VariableSet
from parrot_server.core.model import Criterion, StepKey, Usage, Value
from parrot_server.core.settings import SchedulerSettings
from parrot_server.errors import JournalCorrupt
from parrot_server.journal import EVENT_TYPES, FileJournal, Header, read

HEADER = Header(epoch_s=1_767_225_600.25, settings=SchedulerSettings(policy="fcfs", age_s=math.inf))
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
st.register_type_strategy(str, TEXT)
st.register_type_strategy(float, st.floats(allow_nan=False))
EVENTS = st.one_of(*[st.from_type(kind) for kind in EVENT_TYPES.values()])


def record(path: Path, timed_events: list[tuple[float, Event]]) -> None:
    async def main() -> None:
        journal = FileJournal(path, HEADER)
        for now_s, event in timed_events:
            journal.append(now_s, event)
            await journal.commit()
        await journal.close()

    asyncio.run(main())


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(timed_events=st.lists(st.tuples(st.floats(0, 1e9), EVENTS), max_size=6))
def test_every_event_comes_back_exactly(
    timed_events: list[tuple[float, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("journal") / "events.jsonl"
    record(path, timed_events)
    header, came_back = read(path)
    assert header == HEADER
    both = list(zip(timed_events, came_back, strict=True))
    assert all(repr(put) == repr(got) for put, got in both)  # repr tells 1 from 1.0 and -0.0 from 0.0


def test_every_event_of_the_vocabulary_is_known() -> None:
    assert {Submitted, VariableSet, Finished} <= set(EVENT_TYPES.values())
    assert Keep not in EVENT_TYPES.values()


SAMPLE: list[tuple[float, Event]] = [
    (0.5, Submitted("p", variables=(("x", Value("hé\n{{y}}", 3)),), criteria=(("x", Criterion("deadline", 2.0)),))),
    (0.75, Finished(StepKey("p", "c", 1), 2, Value("done", 1), Usage(9, 4, 1))),
    (1.0, Closed("p")),
]


@pytest.mark.parametrize("line", [1, 2, 3, 4])
def test_a_flipped_byte_is_found_and_placed(line: int, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    record(path, SAMPLE)
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = bytearray(lines[line - 1])
    damaged[len(damaged) // 2] ^= 1
    lines[line - 1] = bytes(damaged)
    path.write_bytes(b"".join(lines))
    with pytest.raises(JournalCorrupt, match=f"line {line}: torn or damaged"):
        list(read(path)[1])


def test_a_torn_tail_is_found_and_what_is_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    record(path, SAMPLE)
    path.write_bytes(path.read_bytes()[:-7])
    _, came_back = read(path)
    assert [next(came_back), next(came_back)] == SAMPLE[:2]
    with pytest.raises(JournalCorrupt, match="line 4: torn"):
        next(came_back)


def test_a_lost_line_is_found(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    record(path, SAMPLE)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2] + lines[3:]))
    with pytest.raises(JournalCorrupt, match="line 3: record 3 stands where 2 belongs"):
        list(read(path)[1])


def test_what_is_no_journal_is_refused(tmp_path: Path) -> None:
    empty, other = tmp_path / "empty", tmp_path / "other"
    empty.touch()
    other.write_text('{"hello": 1}\n')
    for path in (empty, other):
        with pytest.raises(JournalCorrupt):
            read(path)


def test_a_journal_is_never_overwritten(tmp_path: Path) -> None:
    record(tmp_path / "events.jsonl", SAMPLE)
    with pytest.raises(FileExistsError):
        FileJournal(tmp_path / "events.jsonl", HEADER)


def test_records_hold_every_field(tmp_path: Path) -> None:
    record(tmp_path / "events.jsonl", SAMPLE)
    text = (tmp_path / "events.jsonl").read_text()
    assert all(f'"{field.name}":' in text for kind in (Submitted, Finished, Closed) for field in fields(kind))
