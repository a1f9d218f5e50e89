"""Idempotency-Key: a request that comes twice is done once, also when both come at the same time."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from parrot_server.errors import Refused


@dataclass(slots=True)
class _Seen:
    """A request with a key: what it was, and the program that came of it."""

    digest: bytes
    program: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class IdempotencyKeys:
    """Remembers keys and what came of them.

    Args:
        most: so many are remembered; the oldest go first.
    """

    def __init__(self, most: int = 10_000) -> None:
        self._most = most
        self._seen: OrderedDict[tuple[str, ...], _Seen] = OrderedDict()

    async def once(self, key: tuple[str, ...], body: bytes, act: Callable[[], Awaitable[str]]) -> tuple[str, bool]:
        """Do something once for a key.

        Args:
            key: the client's key, with the tenant and the place that it is for.
            body: what the request said; the same key with another body is refused.
            act: does it, and returns the program's id.

        Returns the program's id, and whether it had been done before. Raises what `act` raises, and Refused (409).
        """
        digest = hashlib.sha256(body).digest()
        seen = self._seen.get(key)
        if seen is not None:
            if seen.digest != digest:
                message = "this Idempotency-Key came with another body before: use a new key for a new request"
                raise Refused("key_reused", message, status=409, at="headers.idempotency-key")
            return await asyncio.shield(seen.program), True
        seen = self._seen[key] = _Seen(digest)
        while len(self._seen) > self._most:
            self._seen.popitem(last=False)
        try:
            program = await act()
        except BaseException as error:
            self._seen.pop(key, None)
            if isinstance(error, Exception):
                seen.program.set_exception(error)
                seen.program.exception()  # nobody else may wait for it
            else:
                seen.program.cancel()
            raise
        seen.program.set_result(program)
        return program, False
