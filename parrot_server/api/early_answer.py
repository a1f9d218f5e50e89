"""Answers that are given before the request's body was read."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

LINGER_S = 20.0
LINGER_BYTES = 2**30


async def answer_early(answer: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer at once, then read and throw away what the client is still sending, within bounds.

    Otherwise it would see a broken connection instead of the answer.
    """
    answer.headers["connection"] = "close"
    await send({"type": "http.response.start", "status": answer.status_code, "headers": answer.raw_headers})
    await send({"type": "http.response.body", "body": answer.body, "more_body": True})
    expects = Headers(scope=scope).get("expect", "").lower() == "100-continue"
    if not expects:
        await _throw_away(receive)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _throw_away(receive: Receive) -> None:
    thrown = 0
    try:
        async with asyncio.timeout(LINGER_S):
            while thrown < LINGER_BYTES:
                message = await receive()
                thrown += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body"):
                    return
    except TimeoutError:
        return
