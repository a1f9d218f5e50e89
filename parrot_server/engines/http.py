"""HTTP to an engine: one client, every wait bounded, streams always closed, foreign errors mapped once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import httpx
from httpx_sse import EventSource, SSEError

from parrot_server.engines.http_errors import broken, failure
from parrot_server.errors import EngineError, Fault, SetupError

Body = dict[str, Any]
DONE = "[DONE]"
LOOPBACK = {"localhost", "127.0.0.1", "::1"}
KEEP_ALIVE_S = 2.0  # servers drop idle connections after 5 s; one must not be taken up just then
ERROR_BYTES = 65_536
DRAIN_S = 0.2
STALE_S = 1.0


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
        parsed = httpx.URL(self.url)
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise SetupError(f"engine {id}: {url!r} is no http:// or https:// URL")
        self.host = parsed.host
        self._headers = dict(AS_CLIENT) | ({"authorization": f"Bearer {api_key}"} if api_key else {})
        self._address = lru_cache(maxsize=64)(lambda path: httpx.URL(self.url + path))
        self._extensions = {"timeout": httpx.Timeout(None, connect=patience.connect_s).as_dict()}
        self._client = httpx.AsyncClient(
            limits=httpx.Limits(max_connections=None, keepalive_expiry=KEEP_ALIVE_S),
            trust_env=parsed.host not in LOOPBACK,
        )

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

    async def post(self, path: str, body: Body, within_s: float | None = None) -> httpx.Response:
        """The answer to a body. Raises EngineError."""
        return await self._ask("POST", path, body, self._patience.answer_s if within_s is None else within_s)

    async def events(self, path: str, body: Body) -> AsyncGenerator[str, None]:
        """The data of each event that a path streams for a body. Raises EngineError."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._patience.first_token_s
        async with self._opened(path, body, until_s) as source:
            stream = source.aiter_sse()
            while True:
                try:
                    async with asyncio.timeout_at(until_s):
                        event = await anext(stream)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    raise self._silent("no more of its answer") from None
                if event.data:
                    yield event.data
                if event.data == DONE:  # read on to the end of the body, so that the connection can be used again
                    with suppress(TimeoutError, StopAsyncIteration, httpx.HTTPError):
                        async with asyncio.timeout(DRAIN_S):
                            await anext(stream)
                    return
                until_s = loop.time() + self._patience.idle_s

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    @asynccontextmanager
    async def _opened(self, path: str, body: Body, until_s: float) -> AsyncGenerator[EventSource, None]:
        with self._mapped():
            try:
                async with asyncio.timeout_at(until_s):
                    response = await self._send("POST", path, encode(body), STREAM_HEADERS)
            except TimeoutError:
                raise self._silent("no answer") from None
            try:
                if response.status_code != 200:
                    text = await self._error_text(response)
                    raise failure(self.id, response.status_code, text, response.headers)
                yield EventSource(response)
            finally:
                await response.aclose()

    async def _send(self, method: str, path: str, content: bytes | None, headers: Mapping[str, str]) -> httpx.Response:
        """Send a request, and once again if the connection was lost at once: a server may have dropped it while it was idle."""
        sent_s = asyncio.get_running_loop().time()
        try:
            return await self._send_once(method, path, content, headers)
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
            if asyncio.get_running_loop().time() - sent_s > STALE_S:
                raise
            return await self._send_once(method, path, content, headers)

    async def _send_once(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str]
    ) -> httpx.Response:
        # Made here: the client would parse the URL and merge its headers anew for each request.
        request = httpx.Request(
            method,
            self._address(path),
            content=content,
            headers={**self._headers, **headers},
            extensions=self._extensions,
        )
        return await self._client.send(request, stream=True)

    async def _error_text(self, response: httpx.Response) -> str:
        read = bytearray()
        with suppress(TimeoutError, httpx.HTTPError):
            async with asyncio.timeout(self._patience.answer_s):
                async for piece in response.aiter_bytes():
                    read += piece
                    if len(read) > ERROR_BYTES:
                        break
        return read.decode("utf-8", "replace")

    async def _ask(self, method: str, path: str, body: Body | None, within_s: float) -> httpx.Response:
        content = None if body is None else encode(body)
        with self._mapped():
            try:
                async with asyncio.timeout(within_s):
                    response = await self._send(method, path, content, JSON_HEADERS)
                    try:
                        await response.aread()
                    finally:
                        await response.aclose()
            except TimeoutError:
                raise self._silent(f"no answer to {method} {path}") from None
        if response.status_code >= 300:
            raise failure(self.id, response.status_code, response.text[:ERROR_BYTES], response.headers)
        return response

    def _silent(self, what: str) -> EngineError:
        return EngineError(Fault.TIMEOUT, "engine_timeout", f"engine {self.id} gave {what} in time")

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            message = f"engine {self.id} is gone: {self.url} takes no connection ({type(error).__name__})"
            raise EngineError(Fault.ENGINE, "engine_gone", message) from None
        except httpx.HTTPError as error:
            message = f"the connection to engine {self.id} broke off ({type(error).__name__})"
            raise EngineError(Fault.ENGINE, "stream_broken", message) from None
        except SSEError:
            raise broken(self.id, "its answer is no event stream") from None


AS_CLIENT = {"accept": "*/*", "accept-encoding": "identity", "user-agent": "parrot"}
JSON_HEADERS = {"content-type": "application/json"}
STREAM_HEADERS = {**JSON_HEADERS, "accept": "text/event-stream", "cache-control": "no-store"}


def encode(body: Body) -> bytes:
    """A body as JSON; text that is no valid Unicode is made so."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def json_of(engine: str, response: httpx.Response) -> Any:
    """What a response says. Raises EngineError when it is no JSON."""
    try:
        return response.json()
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
