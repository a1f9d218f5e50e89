"""The size of bodies, bounded before anything of them is parsed. Plain ASGI."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parrot_server.api.early_answer import answer_early
from parrot_server.api.problems import problem

IDLE_S = 30.0


class BodyLimit:
    """Refuses bodies that are too large, before anything of them is parsed, whether or not they say their length.

    Args:
        app: what is behind it.
        body_bytes: the most that a body may have.
    """

    def __init__(self, app: ASGIApp, body_bytes: int) -> None:
        self._app = app
        self._body_bytes = body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "0")
        if length.isdecimal() and int(length) > self._body_bytes:
            await self._refuse(scope, receive, send)
            return
        received, begun, more = 0, False, True

        async def receive_counted() -> Message:
            nonlocal received, more
            async with asyncio.timeout(IDLE_S if more else None):
                message = await receive()
            more = message.get("more_body", False)
            received += len(message.get("body", b""))
            if received > self._body_bytes:
                raise _TooLarge
            return message

        async def send_noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive_counted, send_noted)
        except _TooLarge:
            if not begun:
                await self._refuse(scope, receive, send)
        except TimeoutError:
            if begun or not more:
                raise
            answer = problem(408, "body_timeout", f"nothing more of the body came in {IDLE_S:g} s", retryable=True)
            await answer_early(answer, scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        detail = f"the body is larger than body_bytes allows, {self._body_bytes} bytes: send it in several requests"
        await answer_early(problem(413, "limit_exceeded", detail, at="body"), scope, receive, send)


class _TooLarge(Exception):
    """More came than a body may have."""
