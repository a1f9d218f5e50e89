"""Growing texts, variable streams and program logs: readers are offsets, and every one of them ends up with the same."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parrot_server.clock import run_virtual
from parrot_server.core.model import Failure, ProgramState, Value
from parrot_server.program_log import Lagged, ProgramLog, ProgramMoved
from parrot_server.streams import BLOCK_CHARACTERS, Delta, GrowingText, Reset, StreamItem, VariableStream

CHUNKS = st.lists(st.one_of(st.text(max_size=6), st.integers(1, 9000).map("ab€".__mul__)), max_size=12)


@given(chunks=CHUNKS, offset=st.integers(0, 30_000), most=st.integers(1, 20_000))
def test_any_part_of_a_growing_text_can_be_read(chunks: list[str], offset: int, most: int) -> None:
    text = GrowingText()
    for chunk in chunks:
        text.append(chunk)
    whole = "".join(chunks)
    assert text.whole() == whole
    assert text.read(offset, most) == whole[offset : offset + most]
    assert (text.length, text.length_bytes) == (len(whole), len(whole.encode()))


def test_tiny_chunks_are_kept_in_large_blocks() -> None:
    text = GrowingText()
    for _ in range(5 * BLOCK_CHARACTERS):
        text.append("x")
    assert len(text._blocks) == 5


def read(items: list[StreamItem]) -> str:
    held = ""
    for item in items:
        if isinstance(item, Reset):
            held = ""
        elif isinstance(item, Delta):
            assert item.offset == len(held)
            held += item.text
    return held


@given(
    attempts=st.lists(st.lists(st.text(min_size=1, max_size=5), max_size=5), min_size=1, max_size=4),
    pauses=st.lists(st.integers(0, 3), min_size=1, max_size=5),
    foreign=st.booleans(),
)
def test_readers_of_any_speed_hold_the_value_in_the_end(
    attempts: list[list[str]], pauses: list[int], foreign: bool
) -> None:
    async def main() -> None:
        stream = VariableStream()
        value = Value("a fallback" if foreign else "".join(attempts[-1]), 1)

        async def reader(pause_s: int) -> list[StreamItem]:
            items = []
            async for item in stream.follow():
                items.append(item)
                await asyncio.sleep(pause_s)
            return items

        readers = [asyncio.create_task(reader(pause_s)) for pause_s in pauses]
        for number, chunks in enumerate(attempts, 1):
            text = GrowingText()
            for chunk in chunks:
                text.append(chunk)
                stream.grow(text, number)
                await asyncio.sleep(1)
            text.given_up = number < len(attempts) or foreign
        stream.finish(value)
        for items in await asyncio.gather(*readers):
            assert read(items[:-1]) == value.text
            assert items[-1] == value

    run_virtual(main())


def test_of_calls_that_race_one_is_shown_and_the_winner_s_text_counts() -> None:
    async def main() -> None:
        stream = VariableStream()
        loser, winner = GrowingText(), GrowingText()
        reading = asyncio.create_task(_all(stream))
        for text, piece in ((loser, "lo"), (winner, "wi"), (loser, "ser"), (winner, "nner")):
            text.append(piece)
            stream.grow(text, 1)
            await asyncio.sleep(1)
        stream.finish(Value("winner", 1))
        items = await reading
        assert items[:3] == [Delta(0, "lo", 1), Delta(2, "ser", 1), Reset(2)]
        assert read(items) == "winner"

    run_virtual(main())


def test_a_failure_ends_a_stream_without_more_text() -> None:
    async def main() -> None:
        stream = VariableStream()
        text = GrowingText()
        text.append("half")
        stream.grow(text, 1)
        failure = Failure("bad", "no")
        stream.finish(failure)
        assert await _all(stream) == [failure]

    run_virtual(main())


async def _all(stream: VariableStream) -> list[StreamItem]:
    return [item async for item in stream.follow()]


@pytest.mark.parametrize(
    ("cursor", "first"), [(0, Lagged(7)), (6, Lagged(1)), (7, 8), (9, 10), (10, None), (99, Lagged(7))]
)
def test_a_log_is_read_from_any_cursor(cursor: int, first: int | Lagged | None) -> None:
    async def main() -> None:
        log = ProgramLog(submitted_s=5, most=3)
        for second in range(10):
            log.add(5 + second, ProgramMoved(ProgramState.OPEN))
        log.end()
        entries = [entry async for entry in log.follow(cursor)]
        if isinstance(first, Lagged):
            assert entries[0].what == first
            assert [entry.cursor for entry in entries] == [7, 8, 9, 10]
        else:
            assert [entry.cursor for entry in entries] == list(range(first or 11, 11))
        assert not entries or entries[-1].at_s == 9

    run_virtual(main())
