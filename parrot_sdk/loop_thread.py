"""An event loop in a thread of its own, to which any thread hands work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from parrot_sdk.errors import ProgramError

T = TypeVar("T")


class LoopThread:
    """A daemon thread that runs an event loop until it is stopped.

    Args:
        loop: the event loop; by default a new one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.stopped = False
        self._at_end: list[Callable[[], Awaitable[None]]] = []
        self._lock = threading.Lock()
        self._loop = loop or asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="parrot-client", daemon=True)
        self._thread.start()

    def at_end(self, last: Callable[[], Awaitable[None]]) -> None:
        """Do this in the loop when it stops, after all work was cancelled."""
        self._at_end.append(last)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Do this in the loop. Raises ProgramError when the thread was stopped."""
        with self._lock:
            if self.stopped:
                work.close()
                raise ProgramError("the client is closed")
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def stop(self) -> None:
        """Cancel what runs, wait for that, and end the thread. May be called twice."""
        with self._lock:
            if self.stopped:
                return
            self.stopped = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._end())
            self._loop.close()

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        for last in self._at_end:
            await last()
