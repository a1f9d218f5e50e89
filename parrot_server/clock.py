"""An asyncio event loop whose time is virtual: it jumps to the next timer as soon as nothing can run.

A test of an hour's time-outs takes a millisecond, and takes the same steps in the same order each time. What waits for
something that nobody will ever do is found at once: the loop raises `Deadlock` instead of waiting for ever.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Deadlock(RuntimeError):
    """Nothing can run and no timer is set: every task waits for another."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """The event loop with the virtual clock.

    Args:
        start_s: what `time()` says at first.
        stands_still: asked when nothing can run; while it says so, time does not jump, and the loop waits for work from
            other threads.

    Work for an executor (`asyncio.to_thread`) is done at once and in place, since threads have no virtual time. Sockets
    work, but their data may come at any time, so a test that must repeat exactly has none.
    """

    def __init__(self, start_s: float = 0.0, stands_still: Callable[[], bool] = lambda: False) -> None:
        self._now_s = start_s
        self.stands_still = stands_still
        super().__init__(_JumpSelector(self))

    def time(self) -> float:
        """Virtual seconds."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Let virtual time pass; timers that fall due run in the loop's next round."""
        self._now_s += seconds

    def run_in_executor(self, executor: object, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Do it at once, in place."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - handed to whoever awaits the future
            future.set_exception(error)
        return future


def run_virtual(main: Coroutine[Any, Any, T], *, start_s: float = 0.0) -> T:
    """Run a coroutine to its end in virtual time, as `asyncio.run` does in real time. Raises Deadlock."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(start_s)) as runner:
        return runner.run(main)


class _JumpSelector(selectors.SelectSelector):
    """Where a loop would sleep until its next timer, this moves the clock there."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if self._loop.stands_still():
            return super().select(None)
        if timeout is None:
            raise Deadlock(
                f"nothing can run and no timer is set; waiting: {', '.join(_waiting(self._loop)) or 'nobody'}"
            )
        self._loop.advance(timeout)
        return ready


def _waiting(loop: asyncio.AbstractEventLoop) -> list[str]:
    """Names of the tasks that wait, with the function that each is in."""
    names = []
    for task in asyncio.all_tasks(loop):
        frames = task.get_stack(limit=1)
        place = f" in {frames[0].f_code.co_qualname}" if frames else ""
        names.append(task.get_name() + place)
    return sorted(names)
