"""HTTP to an engine: one client, every wait bounded, streams always closed, foreign errors mapped once.

By aiohttp: a stream of nine events takes 1.4 ms of a processor's time with it, 3.4 ms with httpx, and these streams are this server's
daily work.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.request import getproxies, proxy_bypass

import aiohttp
from yarl import URL

from parrot_server.engines.event_lines import EventLines
from parrot_server.engines.http_errors import broken, failure
from parrot_server.errors import EngineError, Fault, SetupError

Body = dict[str, Any]
DONE = "[DONE]"
ERROR_BYTES = 65_536
DRAIN_S = 0.2
STALE_S = 1.0
IDLE_CONNECTION_S = 2.0  # servers drop idle ones after 5 s; one must not be taken up just then
LOOPBACK = {"localhost", "127.0.0.1", "::1"}


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for an engine, in seconds.

    Args:
        connect_s: for a connection.
        first_token_s: from sending a request to the first piece of its stream, the engine's own queue included.
        idle_s: from one piece of a stream to the next.
        answer_s: for the whole answer to a small question.
    """

    connect_s: float = 5.0
    first_token_s: float = 300.0
    idle_s: float = 60.0
    answer_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def text(self) -> str:
        """As text."""
        return self.content.decode("utf-8", "replace")


class EngineHTTP:
    """An engine's HTTP server.

    Args:
        id: the engine's name, for messages.
        url: base URL; a trailing `/v1` is taken off.
        api_key: sent as a bearer token.
        patience: how long to wait.

    Raises:
        SetupError: the URL is none.
    """

    def __init__(self, id: str, url: str, api_key: str | None, patience: Patience) -> None:
        self.id = id
        self.url = url.rstrip("/").removesuffix("/v1")
        self._patience = patience
        try:
            parsed = URL(self.url)
            self.host = parsed.host or ""
            self.host.encode("idna")
            sound = parsed.scheme in ("http", "https") and bool(self.host) and parsed.port != 0
        except ValueError:
            sound = False
        if not sound:
            raise SetupError(f"engine {id}: {url!r} is no http:// or https:// URL")
        if parsed.user is not None and api_key:
            raise SetupError(f"engine {id}: its URL names a user, and there is a key too: give one of them")
        self._proxy = None if self.host in LOOPBACK or proxy_bypass(self.host) else getproxies().get(parsed.scheme)
        self._headers = AS_CLIENT | ({"authorization": f"Bearer {api_key}"} if api_key else {})
        self._session: aiohttp.ClientSession | None = None
        self._streams: set[aiohttp.ClientResponse] = set()
        self._closed = False

    async def get(self, path: str) -> Any:
        """The JSON that a path answers. Raises EngineError."""
        return json_of(self.id, await self._ask("GET", path, None, self._patience.answer_s))

    async def get_text(self, path: str) -> str:
        """The text that a path answers. Raises EngineError."""
        return (await self._ask("GET", path, None, self._patience.answer_s)).text

    async def find(self, path: str) -> Any:
        """The JSON that a path answers, or None where the server has no such path. Raises EngineError."""
        try:
            return await self.get(path)
        except EngineError as error:
            if error.fault is Fault.CALL:
                return None
            raise

    async def post(self, path: str, body: Body, within_s: float | None = None) -> Reply:
        """The answer to a body. Raises EngineError."""
        return await self._ask("POST", path, body, self._patience.answer_s if within_s is None else within_s)

    async def events(self, path: str, body: Body) -> AsyncGenerator[str, None]:
        """The data of each event that a path streams for a body. Raises EngineError."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._patience.first_token_s
        lines = EventLines()
        async with self._opened(path, body, until_s) as answer:
            while True:
                try:
                    async with asyncio.timeout_at(until_s):
                        piece = await answer.content.readany()
                except TimeoutError:
                    raise self._silent("no more of its answer") from None
                if not piece:
                    return
                ended = False
                for data in lines.feed(piece):
                    yield data
                    ended = ended or data == DONE
                if ended:  # read on to the end of the body, so that the connection can be used again
                    with suppress(TimeoutError, aiohttp.ClientError):
                        async with asyncio.timeout(DRAIN_S):
                            await answer.content.readany()
                    return
                until_s = loop.time() + self._patience.idle_s

    async def close(self) -> None:
        """Close all connections, for good: what still reads or asks then gets an EngineError."""
        self._closed = True
        for answer in self._streams:  # a session that closes does not wake those who read from it
            answer.close()
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @asynccontextmanager
    async def _opened(self, path: str, body: Body, until_s: float) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        with self._mapped():
            try:
                async with asyncio.timeout_at(until_s):
                    answer = await self._send("POST", path, STREAM_HEADERS, encode(body))
            except TimeoutError:
                raise self._silent("no answer") from None
            self._streams.add(answer)
            try:
                if answer.status != 200:
                    raise failure(self.id, answer.status, await self._error_text(answer), answer.headers)
                if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                    raise broken(self.id, "its answer is no event stream")
                yield answer
            finally:
                self._streams.discard(answer)
                answer.close()

    async def _send(
        self, method: str, path: str, headers: Mapping[str, str], content: bytes | None
    ) -> aiohttp.ClientResponse:
        """Send a request, and once again if the connection was lost at once: a server may have dropped it while it was idle."""
        sent_s = asyncio.get_running_loop().time()
        try:
            return await self._send_once(method, path, headers, content)
        except LOST as error:
            refused = isinstance(error, aiohttp.ClientConnectorError)
            if refused or asyncio.get_running_loop().time() - sent_s > STALE_S:
                raise
            return await self._send_once(method, path, headers, content)

    async def _send_once(
        self, method: str, path: str, headers: Mapping[str, str], content: bytes | None
    ) -> aiohttp.ClientResponse:
        if self._closed:
            raise EngineError(Fault.ENGINE, "engine_gone", f"the connections to engine {self.id} were closed")
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(connect=self._patience.connect_s),
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_CONNECTION_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                proxy=self._proxy,
            )
        try:
            return await self._session.request(
                method, self.url + path, data=content, headers=headers, allow_redirects=False
            )
        except aiohttp.ConnectionTimeoutError:  # a TimeoutError too, but not one of ours
            raise self._gone("timed out") from None

    async def _error_text(self, answer: aiohttp.ClientResponse) -> str:
        read = bytearray()
        with suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(self._patience.answer_s):
                async for piece in answer.content.iter_any():
                    read += piece
                    if len(read) > ERROR_BYTES:
                        break
        return read.decode("utf-8", "replace")

    async def _ask(self, method: str, path: str, body: Body | None, within_s: float) -> Reply:
        content = None if body is None else encode(body)
        with self._mapped():
            try:
                async with asyncio.timeout(within_s):
                    async with await self._send(method, path, JSON_HEADERS, content) as answer:
                        read = await answer.read()
            except TimeoutError:
                raise self._silent(f"no answer to {method} {path}") from None
        reply = Reply(answer.status, answer.headers, read)
        if reply.status >= 300:
            raise failure(self.id, reply.status, reply.text[:ERROR_BYTES], reply.headers)
        return reply

    def _silent(self, what: str) -> EngineError:
        return EngineError(Fault.TIMEOUT, "engine_timeout", f"engine {self.id} gave {what} in time")

    def _gone(self, why: str) -> EngineError:
        message = f"engine {self.id} is gone: {self.url} takes no connection ({why})"
        return EngineError(Fault.ENGINE, "engine_gone", message)

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except aiohttp.ClientHttpProxyError as error:
            raise self._gone(f"the proxy answers {error.status}") from None
        except aiohttp.ClientConnectorError as error:
            raise self._gone(type(error).__name__) from None
        except LOST as error:
            message = f"the connection to engine {self.id} broke off ({type(error).__name__})"
            raise EngineError(Fault.ENGINE, "stream_broken", message) from None


LOST = (aiohttp.ClientError, OSError)
AS_CLIENT = {"accept": "*/*", "accept-encoding": "identity", "user-agent": "parrot"}
JSON_HEADERS = {"content-type": "application/json"}
STREAM_HEADERS = {**JSON_HEADERS, "accept": "text/event-stream", "cache-control": "no-store"}


def encode(body: Body) -> bytes:
    """A body as JSON; text that is no valid Unicode is made so."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def json_of(engine: str, reply: Reply) -> Any:
    """What a reply says. Raises EngineError when it is no JSON."""
    try:
        return json.loads(reply.content)
    except ValueError:
        raise broken(engine, "its answer is no JSON") from None


def event_of(engine: str, data: str) -> Body:
    """What an event says. Raises EngineError: it is no JSON object, or it tells of an error."""
    try:
        event = json.loads(data)
    except ValueError:
        raise broken(engine, "a line of its stream is no JSON") from None
    if not isinstance(event, dict):
        raise broken(engine, "a line of its stream is no JSON object")
    if event.get("error") is not None or event.get("object") == "error":
        raise failure(engine, 0, data, {})
    return event
