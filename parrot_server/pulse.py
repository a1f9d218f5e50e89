"""A bell that wakes whoever waits at this moment, and nobody later."""

from __future__ import annotations

import asyncio


class Pulse:
    """Readers check what they wait for, then `wait`; writers change it, then `beat`. On one loop none is missed."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    async def wait(self) -> None:
        """Wait for the next beat."""
        beat = asyncio.get_running_loop().create_future()
        self._waiting.add(beat)
        try:
            await beat
        finally:
            self._waiting.discard(beat)

    def beat(self) -> None:
        """Wake all who wait."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting = set()
