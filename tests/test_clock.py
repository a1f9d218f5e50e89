"""The virtual clock: time jumps, order is fixed, a deadlock is an error."""

from __future__ import annotations

import ast
import asyncio
import time
from pathlib import Path

import pytest

import parrot_server
from parrot_server.clock import Deadlock, VirtualLoop, run_virtual


def test_an_hour_takes_no_time_and_is_an_hour() -> None:
    async def main() -> float:
        begun = asyncio.get_running_loop().time()
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time() - begun

    begun = time.perf_counter()
    assert run_virtual(main(), start_s=5) == pytest.approx(3600)
    assert time.perf_counter() - begun < 1


def test_timers_run_in_the_order_of_their_times() -> None:
    async def main() -> list[tuple[str, float]]:
        seen: list[tuple[str, float]] = []

        async def mark(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append((name, asyncio.get_running_loop().time()))

        async with asyncio.TaskGroup() as group:
            for name, seconds in [("late", 0.3), ("early", 0.1), ("mid", 0.2), ("far", 200_000.0)]:
                group.create_task(mark(name, seconds))
        return seen

    first = run_virtual(main())
    assert [name for name, _ in first] == ["early", "mid", "late", "far"]
    assert [at for _, at in first] == pytest.approx([0.1, 0.2, 0.3, 200_000.0])
    assert run_virtual(main()) == first


def test_timeouts_are_virtual_too() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(600):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(600)


def test_waiting_for_nobody_raises_and_says_who_waits() -> None:
    async def wait_for_nobody() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(wait_for_nobody(), name="the sleeper")
        await task

    with pytest.raises(Deadlock, match=r"the sleeper in .*wait_for_nobody"):
        run_virtual(main())


def test_threads_have_no_part_in_it() -> None:
    async def main() -> str:
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 / 0)
        return await asyncio.to_thread("{}!".format, "done")

    assert run_virtual(main()) == "done!"


def test_the_loop_closes() -> None:
    loop = VirtualLoop()
    loop.run_until_complete(asyncio.sleep(1))
    loop.close()
    assert loop.is_closed()


def test_time_is_never_taken_from_the_clock_on_the_wall() -> None:
    """A wall clock jumps: by an hour twice a year, or when somebody sets it. Only headers name dates: a journal's, and HTTP's."""
    wall = {("time", "time"), ("datetime", "now"), ("datetime", "utcnow"), ("date", "today")}
    found = set()
    root = Path(parrot_server.__file__).parent
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                name = (node.value.id, node.attr)
                found |= {(path.relative_to(root).as_posix(), ".".join(name))} if name in wall else set()
    date_of_retry_after = ("engines/http_errors.py", "datetime.now")
    assert found <= {("server.py", "time.time"), date_of_retry_after}
