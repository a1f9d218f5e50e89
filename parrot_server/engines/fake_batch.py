"""The scripted engine's queue and running batch."""

from __future__ import annotations

import asyncio
import heapq
from dataclasses import dataclass, field

from parrot_server.engines.base import Request
from parrot_server.errors import EngineError


@dataclass(eq=False)
class BatchCall:
    """One call in the engine. `need_tokens` is the KV that it may come to hold beyond what is cached."""

    request: Request
    prompt_tokens: int
    need_tokens: int
    grant_tokens: int | None
    error: EngineError | None = None
    poked: asyncio.Event = field(default_factory=asyncio.Event)

    async def poked_before(self, until_s: float | None) -> bool:
        """Wait for a poke until a time of the loop; an error that befell the call meanwhile is raised."""
        try:
            async with asyncio.timeout_at(until_s):
                await self.poked.wait()
        except TimeoutError:
            return False
        self.poked.clear()
        self.check()
        return True

    def check(self) -> None:
        """Raise the error that befell the call, if one did."""
        if self.error:
            raise self.error


class Batch:
    """Calls that wait by priority, run, or are paused with their KV kept.

    Args:
        max_running: places in the batch.
        kv_tokens: room for KV. A call that is alone gets in whatever it needs.
    """

    def __init__(self, max_running: int, kv_tokens: int) -> None:
        self.running: dict[str, BatchCall] = {}
        self.paused: dict[str, BatchCall] = {}
        self.waiting: dict[str, BatchCall] = {}
        self._max_running = max_running
        self._kv_tokens = kv_tokens
        self._queue: list[tuple[bool, int, int, BatchCall]] = []
        self._arrivals = 0

    def find(self, rid: str) -> BatchCall | None:
        """The call of this id, if it is here."""
        return self.running.get(rid) or self.paused.get(rid) or self.waiting.get(rid)

    def calls(self) -> list[BatchCall]:
        """All calls."""
        return [*self.running.values(), *self.paused.values(), *self.waiting.values()]

    def enter(self, call: BatchCall) -> None:
        """Queue a call; one that was paused goes ahead of those that never ran."""
        resumed = self.paused.pop(call.request.rid, None) is not None
        self.waiting[call.request.rid] = call
        self._arrivals += 1
        heapq.heappush(self._queue, (not resumed, -call.request.priority, self._arrivals, call))
        self._fill()

    def pause(self, call: BatchCall) -> None:
        """Take a running call out of the batch; its KV stays."""
        self.paused[call.request.rid] = self.running.pop(call.request.rid)
        self._fill()

    def leave(self, call: BatchCall) -> None:
        """A call is over, or given up."""
        for group in (self.running, self.paused, self.waiting):
            group.pop(call.request.rid, None)
        self._fill()

    async def turn_of(self, call: BatchCall) -> None:
        """Wait until a call runs."""
        while call.request.rid not in self.running:
            await call.poked_before(None)

    def _fill(self) -> None:
        held_tokens = sum(call.need_tokens for call in [*self.running.values(), *self.paused.values()])
        while self._queue and len(self.running) < self._max_running:
            call = self._queue[0][-1]
            waits = self.waiting.get(call.request.rid) is call
            if waits and self.running and held_tokens + call.need_tokens > self._kv_tokens:
                return
            heapq.heappop(self._queue)
            if waits:
                self.running[call.request.rid] = self.waiting.pop(call.request.rid)
                held_tokens += call.need_tokens
                call.poked.set()
