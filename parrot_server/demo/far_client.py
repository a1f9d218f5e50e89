"""A client that is a round trip away from its server, which may run in the same process."""

from __future__ import annotations

import asyncio

import httpx

from parrot_sdk import Client
from parrot_sdk.connection import Connection

TIMEOUT_S, RETRY_S = 60.0, 10.0


class FarTransport(httpx.AsyncBaseTransport):
    """Has each request and each answer travel half a round trip.

    What a server does meanwhile is not delayed: an answer that is waited for comes half a round trip after it is there. A
    stream's pieces are not delayed one by one, so long answers should be waited for and not streamed.

    Args:
        inner: what carries requests.
        rtt_s: a round trip, in seconds.
    """

    def __init__(self, inner: httpx.AsyncBaseTransport, rtt_s: float) -> None:
        self._inner = inner
        self._half_s = rtt_s / 2

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Carry one request."""
        await asyncio.sleep(self._half_s)
        response = await self._inner.handle_async_request(request)
        await asyncio.sleep(self._half_s)
        return response

    async def aclose(self) -> None:
        """Close what carries."""
        await self._inner.aclose()


def far_client(url: str, rtt_s: float) -> Client:
    """A client of the server at a URL, so many seconds away."""
    transport = FarTransport(httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=None)), rtt_s)
    return Client(url, connection=Connection(url, None, TIMEOUT_S, RETRY_S, transport=transport))
