"""The way to a server, for sync and async code alike."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from parrot_sdk.connection import Connection
from parrot_sdk.errors import ProgramError, ServerGone
from parrot_sdk.program import Program
from parrot_sdk.wire import ProgramReply

DEFAULT_URL = "http://127.0.0.1:8000"
READY_POLL_S = 0.05


class Client:
    """A server's address and the connections to it. One is enough for all programs, threads and event loops.

        with Client("http://127.0.0.1:8000") as client, client.program("book") as program:
            ...

    Args:
        url: of the server; None: the environment variable PARROT_URL, or without it http://127.0.0.1:8000.
        api_key: None: the environment variable PARROT_API_KEY, if it is set.
        timeout_s: for one answer of the server, beyond what it is asked to wait.
        retry_s: how long a request is tried again while no answer comes, such as when the server starts again; None: 10 s, but 2 s
            for a server that never answered yet and refuses connections.
        wait_timeout_s: how long a read waits for a value when it does not say so itself.
        connection: another way to the server, such as the one that `parrot_sdk.testing` makes.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = 30.0,
        retry_s: float | None = None,
        wait_timeout_s: float = 3600.0,
        connection: Connection | None = None,
    ) -> None:
        url = url or os.environ.get("PARROT_URL") or DEFAULT_URL
        if urlsplit(url).scheme not in ("http", "https"):
            raise ProgramError(f"{url!r} is no address of a server: write http://host:port")
        self.wait_timeout_s = wait_timeout_s
        key = api_key or os.environ.get("PARROT_API_KEY")
        self.connection = connection or Connection(url, key, timeout_s, retry_s)
        self._close_server: Callable[[], object] = _nothing

    @classmethod
    def local(cls, **settings: Any) -> Self:
        """A client with a whole server of its own in this process: no other needs to run. Returns when its engine is ready.

        Args:
            settings: of the server: `model`, `engine`, and what else `parrot serve --help` lists.

        Raises ServerGone when the server cannot start; its message says what to do.
        """
        from parrot_sdk.local import LocalServer

        server = LocalServer(**settings)
        client = cls(server.url, timeout_s=60.0, retry_s=1.0)  # once it has gone it does not come back
        client._close_server = weakref.finalize(client, server.close)
        try:
            client.connection.run(_ready(client.connection, server.check))
        except BaseException:
            client.close()
            raise
        return client

    @property
    def url(self) -> str:
        """The server's address."""
        return self.connection.url

    @property
    def http_requests(self) -> int:
        """How many HTTP requests were made so far, those included that were tried again."""
        return self.connection.http_requests

    def program(self, name: str | None = None, **wishes: Any) -> Program:
        """A new program on this server; the arguments are those of `Program`."""
        return Program(name, client=self, **wishes)

    def submit(self, body: Mapping[str, Any], wait_s: float | None = None) -> ProgramReply:
        """Send the JSON of a whole program. With `wait_s` (at most 600) the reply has the sinks' values and errors.

        Raises RequestRefused, ServerGone.
        """
        return self.connection.run(self.connection.request("POST", "/v1/programs", body, wait_s=wait_s)).read(
            ProgramReply
        )

    def check(self) -> None:
        """See that a server answers. Raises ServerGone."""
        self.connection.run(self.connection.request("GET", "/healthz"))

    def close(self) -> None:
        """Give up what still waits, and free connections and thread. May be called twice."""
        self.connection.close()
        self._close_server()

    async def aclose(self) -> None:
        """`close` for asyncio."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def default_client() -> Client:
    """The client of programs that are given none: for PARROT_URL, or without that variable for a server in this process.

    Made at first use, shared, and closed when Python ends.
    """
    key = os.environ.get("PARROT_URL"), os.environ.get("PARROT_API_KEY")
    with _defaults_lock:
        if key not in _defaults:
            _defaults[key] = Client() if key[0] else Client.local()
            atexit.register(_defaults[key].close)
        return _defaults[key]


async def _ready(connection: Connection, check: Callable[[], None]) -> None:
    """Wait until the server is ready. Raises what `check` raises when it never will be."""
    not_yet = frozenset({503})
    while True:
        check()
        try:
            answer = await connection.request("GET", "/readyz", accept=not_yet)
        except ServerGone:
            check()
            raise
        if answer.status not in not_yet:
            return
        await asyncio.sleep(READY_POLL_S)


_defaults: dict[tuple[str | None, str | None], Client] = {}
_defaults_lock = threading.Lock()


def _nothing() -> None: ...
