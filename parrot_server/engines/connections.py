"""HTTP/1.1 to one server, for the streams that are this server's daily work; h11 knows the protocol.

With a general client (httpx) a small call's first text took 2 ms longer on two busy cores, and the whole call a third more of our
processor's time.
"""

from __future__ import annotations

import asyncio
import base64
import urllib.request
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from ssl import SSLContext
from typing import SupportsIndex, cast
from urllib.parse import unquote, urlsplit

import h11
import httpx

READ_BYTES = 65_536
HEAD_BYTES = 65_536
CONNECTIONS_IDLE_S = 2.0  # servers drop idle ones after 5 s; one must not be taken up just then
SECOND_ADDRESS_S = 0.25
LOOPBACK = {"localhost", "127.0.0.1", "::1"}


class Unreachable(Exception):
    """The server takes no connection."""


class Dropped(Exception):
    """The connection is lost, or what came over it is no HTTP."""


class Connections:
    """The connections to one server.

    Args:
        url: its base URL, http or https, maybe with a path.
        connect_s: how long to wait for a connection.

    The proxy that the environment names (`HTTPS_PROXY`, `NO_PROXY`, ...) is used, but not for this machine.
    """

    def __init__(self, url: str, connect_s: float) -> None:
        parsed = urlsplit(url)
        self._tls = parsed.scheme == "https"
        self._host = parsed.hostname or ""
        self._port = parsed.port or (443 if self._tls else 80)
        self._path = parsed.path.rstrip("/")
        self._connect_s = connect_s
        self._authority = parsed.netloc.rpartition("@")[2]
        self._proxy = _proxy(parsed.scheme, self._host)
        self._idle: list[tuple[float, _Connection]] = []

    async def send(self, method: str, path: str, headers: Mapping[str, str], content: bytes | None) -> Answer:
        """Send a request; its answer has begun. Raises Unreachable, Dropped."""
        connection = self._take() or await self._open()
        fields = [("host", self._authority), *headers.items()]
        target = self._path + path
        if self._proxy and not self._tls:
            target = f"http://{self._authority}{target}"
            fields += self._proxy.authorization
        if content is not None:
            fields.append(("content-length", str(len(content))))
        try:
            await connection.write(h11.Request(method=method, target=target, headers=fields), content)
            return Answer(self, connection, await connection.response())
        except BaseException:
            connection.drop()
            raise

    def give_back(self, connection: _Connection) -> None:
        """A connection is free again, or of no use any more."""
        if connection.renew():
            self._idle.append((asyncio.get_running_loop().time(), connection))
        else:
            connection.drop()

    def close(self) -> None:
        """Drop all that are idle."""
        for _, connection in self._idle:
            connection.drop()
        self._idle.clear()

    def _take(self) -> _Connection | None:
        now_s = asyncio.get_running_loop().time()
        while self._idle:
            since_s, connection = self._idle.pop()
            if now_s - since_s < CONNECTIONS_IDLE_S and connection.usable:
                return connection
            connection.drop()
        return None

    async def _open(self) -> _Connection:
        try:
            async with asyncio.timeout(self._connect_s):
                if self._proxy and self._tls:
                    return await self._tunnel(self._proxy)
                host, port = (self._proxy.host, self._proxy.port) if self._proxy else (self._host, self._port)
                return await _Connection.open(host, port, self._context if self._tls else None)
        except (TimeoutError, OSError) as error:
            raise Unreachable("timed out" if isinstance(error, TimeoutError) else type(error).__name__) from None

    async def _tunnel(self, proxy: _Proxy) -> _Connection:
        connection = await _Connection.open(proxy.host, proxy.port, None)
        try:
            there = f"{self._host}:{self._port}"
            fields = [("host", there), *proxy.authorization]
            await connection.write(h11.Request(method="CONNECT", target=there, headers=fields), None)
            response = await connection.response()
            if response.status_code >= 300:
                raise Unreachable(f"the proxy answers {response.status_code}")
            return await connection.through_it(self._context, self._host)
        except Dropped as error:
            connection.drop()
            raise Unreachable(f"the proxy: {error}") from None
        except BaseException:
            connection.drop()
            raise

    @cached_property
    def _context(self) -> SSLContext:
        return httpx.create_ssl_context()


class Answer:
    """What a server answers: its status and headers (names in lower case), then the body as it comes. To be closed."""

    def __init__(self, connections: Connections, connection: _Connection, response: h11.Response) -> None:
        self.status = response.status_code
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
        self._connections = connections
        self._connection: _Connection | None = connection

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The body, piece by piece. Raises Dropped when it breaks off."""
        while self._connection is not None and (piece := await self._connection.piece()) is not None:
            yield piece

    def close(self) -> None:
        """Leave it. A body that was not read to its end costs the connection, and by that the server learns of it."""
        if self._connection is not None:
            self._connections.give_back(self._connection)
            self._connection = None


class _Reader(asyncio.StreamReader):
    """Counts what came, so that it is known whether all of it was read."""

    came_bytes = 0

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        """More has come."""
        self.came_bytes += len(cast(bytes, data))
        super().feed_data(data)


class _Connection:
    """One connection; one request at a time."""

    def __init__(self, reader: _Reader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._read_bytes = reader.came_bytes
        self._protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)

    @classmethod
    async def open(cls, host: str, port: int, tls: SSLContext | None) -> _Connection:
        """Connect. Raises OSError."""
        loop = asyncio.get_running_loop()
        reader = _Reader()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.create_connection(
            lambda: protocol, host, port, ssl=tls, happy_eyeballs_delay=SECOND_ADDRESS_S
        )
        return cls(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    async def through_it(self, tls: SSLContext, host: str) -> _Connection:
        """The connection to a host to which this one, to a proxy, was put through. Raises OSError."""
        await self._writer.start_tls(tls, server_hostname=host)
        return _Connection(self._reader, self._writer)

    @property
    def usable(self) -> bool:
        """Whether the other side has left it as it was: what came unasked would be taken for the next answer."""
        unasked = self._reader.came_bytes > self._read_bytes
        return not (unasked or self._reader.at_eof() or self._writer.transport.is_closing())

    async def write(self, request: h11.Request, content: bytes | None) -> None:
        """Send a request in one piece."""
        parts = [self._protocol.send(request)]
        if content is not None:
            parts.append(self._protocol.send(h11.Data(content)))
        parts.append(self._protocol.send(h11.EndOfMessage()))
        with suppress(OSError):  # a server may answer and close before it has read all; what it said can still be read
            self._writer.write(b"".join(parts))
            await self._writer.drain()

    async def response(self) -> h11.Response:
        """The head of the answer. Raises Dropped."""
        while isinstance(event := await self._event(), h11.InformationalResponse):
            pass
        if not isinstance(event, h11.Response):
            raise Dropped("closed without an answer")
        return event

    async def piece(self) -> bytes | None:
        """Some more of the body; None at its end. Raises Dropped."""
        event = await self._event()
        return bytes(event.data) if isinstance(event, h11.Data) else None

    def renew(self) -> bool:
        """Be ready for the next request, if the last one went to its end and the server keeps the connection."""
        if self._protocol.our_state is not h11.DONE or self._protocol.their_state is not h11.DONE:
            return False
        self._protocol.start_next_cycle()
        return self.usable and not self._protocol.trailing_data[0]

    def drop(self) -> None:
        """Close it at once."""
        self._writer.transport.abort()

    async def _event(self) -> h11.Event | type[h11.PAUSED]:
        try:
            while (event := self._protocol.next_event()) is h11.NEED_DATA:
                data = await self._reader.read(READ_BYTES)
                self._read_bytes += len(data)
                self._protocol.receive_data(data)
        except OSError as error:
            raise Dropped(type(error).__name__) from None
        except h11.RemoteProtocolError:
            raise Dropped("it is no HTTP, or it ended too early") from None
        return cast("h11.Event | type[h11.PAUSED]", event)


class _Proxy:
    """A proxy by its URL."""

    def __init__(self, url: str) -> None:
        parsed = urlsplit(url if "//" in url else f"http://{url}")
        self.host = parsed.hostname or ""
        self.port = parsed.port or 80
        self.authorization: list[tuple[str, str]] = []
        if parsed.username:
            said = f"{unquote(parsed.username)}:{unquote(parsed.password or '')}"
            self.authorization = [("proxy-authorization", f"Basic {base64.b64encode(said.encode()).decode()}")]


def _proxy(scheme: str, host: str) -> _Proxy | None:
    url = None if host in LOOPBACK or urllib.request.proxy_bypass(host) else urllib.request.getproxies().get(scheme)
    return _Proxy(url) if url else None
