"""Pins on an SGLang server: prefixes that are referenced by a session, so that they are evicted last.

A pin is soft: it cannot keep another request from running. It ends when it is released, when its time is over, or with the
server. Where the server has no such sessions, a prefix is touched now and then instead, which keeps it from being the least
recently used.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from parrot_server.engines.http import Body, EngineHTTP, json_of
from parrot_server.errors import EngineError, Fault

TOUCH_S = 20.0


@dataclass(frozen=True, slots=True)
class _Pin:
    session: str | None
    touching: asyncio.Task[None] | None


class SGLangPins:
    """The prefixes that are held on one server.

    Args:
        http: the server.
        name: begins the names of our sessions there; others may use the server too.
        sessions: whether it keeps what a session references.
        warm_s: how long a warm call may take.
        priority: of a warm call; None: the server takes none.
    """

    def __init__(self, http: EngineHTTP, name: str, sessions: bool, warm_s: float, priority: int | None) -> None:
        self._http = http
        self._name = name
        self._sessions = sessions
        self._warm_s = warm_s
        self._priority = priority
        self._pins: dict[tuple[str, str], _Pin] = {}
        self._numbers = itertools.count(1)

    async def hold(self, prefix: str, ids: Sequence[int], salt: str, hold_s: float) -> int:
        """Compute a prefix if need be and hold it for so long; returns its length in tokens. Raises EngineError."""
        key = (prefix, salt)
        if self._sessions:
            pin, tokens = await self._hold_by_session(ids, salt, hold_s)
        else:
            tokens = await self._warm(ids, salt, None)
            pin = _Pin(None, asyncio.create_task(self._touch(ids, salt, hold_s)))
        before = self._pins.pop(key, None)
        self._pins[key] = pin
        with suppress(EngineError):  # the prefix is held, whatever becomes of the older pin, which ends by itself
            await self._end(before)  # only now: it was never without a pin
        return tokens

    async def release(self, prefix: str, salt: str) -> None:
        """Let a prefix go; one that is not held is ignored. Raises EngineError."""
        await self._end(self._pins.pop((prefix, salt), None))

    async def release_all(self) -> None:
        """Let everything go, as far as the server still answers."""
        pins = list(self._pins.values())
        self._pins.clear()
        with suppress(EngineError):
            for pin in pins:
                await self._end(pin)

    def forget(self) -> None:
        """The server has started anew and holds nothing."""
        for pin in self._pins.values():
            if pin.touching:
                pin.touching.cancel()
        self._pins.clear()

    async def _hold_by_session(self, ids: Sequence[int], salt: str, hold_s: float) -> tuple[_Pin, int]:
        # A name is never used twice: a closed session's name takes no references any more.
        session = f"{self._name}:{next(self._numbers)}"
        opening = {"session_id": session, "capacity_of_str_len": 1, "timeout": hold_s}
        await self._http.post("/open_session", opening)
        pin = _Pin(session, None)
        try:
            return pin, await self._warm(ids, salt, session)
        except BaseException:
            with suppress(EngineError):
                await asyncio.shield(self._end(pin))
            raise

    async def _warm(self, ids: Sequence[int], salt: str, session: str | None) -> int:
        body: Body = {"input_ids": list(ids), "sampling_params": {"max_new_tokens": 0, "temperature": 0}}
        body |= {"session_id": session} if session else {}
        body |= salted(salt)
        body |= {} if self._priority is None else {"priority": self._priority}
        answer = json_of(self._http.id, await self._http.post("/generate", body, self._warm_s))
        meta = answer.get("meta_info") or {}
        finish = meta.get("finish_reason") or {}
        if finish.get("type") == "abort":
            raise EngineError(Fault.BUSY, "not_warmed", f"engine {self._http.id} gave a warm call up")
        return int(meta.get("prompt_tokens") or len(ids))

    async def _touch(self, ids: Sequence[int], salt: str, hold_s: float) -> None:
        with suppress(EngineError, TimeoutError):
            async with asyncio.timeout(hold_s):
                while True:
                    await asyncio.sleep(TOUCH_S)
                    await self._warm(ids, salt, None)

    async def _end(self, pin: _Pin | None) -> None:
        if pin is not None and pin.touching:
            pin.touching.cancel()
        if pin is not None and pin.session:
            await self._http.post("/close_session", {"session_id": pin.session})


def salted(salt: str) -> Body:
    """A cache namespace of its own, in the words of newer and of older servers."""
    return {"cache_salt": salt, "extra_key": salt} if salt else {}
