"""Requests to an ASGI app in the same event loop, without sockets. Unlike httpx's own, it streams, and an app sees its client leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import httpx

Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]

MESSAGES_AHEAD = 16  # so many pieces of an answer may wait to be read


class AppTransport(httpx.AsyncBaseTransport):
    """Carries requests to an app."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Start the app on a request; returns when its answer begins."""
        exchange = _Exchange(await request.aread(), request.extensions.get("timeout", {}).get("read"))
        exchange.task = asyncio.ensure_future(self._app(_scope(request), exchange.receive, exchange.send))
        try:
            start = await exchange.next()
        except BaseException:
            await exchange.aclose()
            raise
        return httpx.Response(start["status"], headers=start["headers"], stream=exchange)


class _Exchange(httpx.AsyncByteStream):
    """One request and its answer."""

    task: asyncio.Future[None]

    def __init__(self, body: bytes, timeout_s: float | None) -> None:
        self._body: bytes | None = body
        self._timeout_s = timeout_s
        self._left = asyncio.Event()
        self._messages: asyncio.Queue[Message] = asyncio.Queue(MESSAGES_AHEAD)

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if not self._left.is_set():
            await self._messages.put(message)

    async def next(self) -> Message:
        """The app's next message. Raises a transport error when there is none, or not in time."""
        reading = asyncio.ensure_future(self._messages.get())
        try:
            await asyncio.wait((reading, self.task), timeout=self._timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                return reading.result()
            if not self._messages.empty():
                return self._messages.get_nowait()
            if self.task.done():
                raise httpx.RemoteProtocolError("the app ended in the middle of its answer")
            raise httpx.ReadTimeout("the app does not go on")
        finally:
            reading.cancel()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            message = await self.next()
            if message.get("body"):
                yield message["body"]
            more = message.get("more_body", False)

    async def aclose(self) -> None:
        """The client leaves; wait until the app has seen it."""
        self._left.set()
        while not self._messages.empty():
            self._messages.get_nowait()
        await asyncio.wait((self.task,), timeout=self._timeout_s)
        self.task.cancel()


def _scope(request: httpx.Request) -> Message:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.url.scheme,
        "path": request.url.path,
        "raw_path": request.url.raw_path.partition(b"?")[0],
        "query_string": request.url.query,
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "server": (request.url.host, request.url.port),
        "client": ("in-process", 0),
    }
