"""A real server on loopback for tests: uvicorn, sockets and all, with scripted engines.

with serving(FakeEngine(script=["one"])) as server:
    server.http.post("/v1/programs", json={...})
    reader = server.open_stream("/v1/programs/p-1/events")
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from parrot_server.config import Settings
from parrot_server.engines.base import Engine
from parrot_server.engines.fake import FakeEngine
from parrot_server.server import serve

DEADLINE_S = 20.0


def until(condition: Callable[[], Any], what: str = "it", deadline_s: float = DEADLINE_S) -> Any:
    """Wait until something holds, and return it; fails when it never does."""
    end = time.monotonic() + deadline_s
    while not (found := condition()):
        assert time.monotonic() < end, f"{what} did not come to be in {deadline_s} s"
        time.sleep(0.005)
    return found


@dataclass
class SSE:
    """One server-sent event."""

    name: str
    data: Any
    id: str = ""


class RawReader:
    """A request over a bare socket, so that a test decides what is read and when, and how it is left.

    Args:
        port: of the server.
        request: the bytes to send.
        receive_bytes: the socket's receive buffer; a small one lets the server feel at once that nobody reads.
    """

    def __init__(self, port: int, request: bytes, receive_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(DEADLINE_S)
        self.socket.connect(("127.0.0.1", port))
        self.socket.sendall(request)
        self._held = b""

    @property
    def head(self) -> str:
        """Status line and headers, read when first asked for."""
        if not hasattr(self, "_head"):
            self._head = self._until(b"\r\n\r\n").decode()
        return self._head

    @property
    def status(self) -> int:
        """The status."""
        return int(self.head.split()[1])

    def body(self) -> bytes:
        """All until the server closes."""
        assert self.head
        while piece := self.socket.recv(65536):
            self._held += piece
        return self._held

    def events(self) -> Iterator[SSE]:
        """Events of a chunked stream as they come; ends with the stream."""
        assert "text/event-stream" in self.head, self.head
        parts: list[bytes] = []
        while size := int(self._until(b"\r\n"), 16):
            parts.append(self._exactly(size + 2)[:-2])
            if b"\n\n" not in b"".join(parts[-2:]):
                continue
            *blocks, rest = b"".join(parts).split(b"\n\n")
            parts = [rest]
            for block in blocks:
                fields = dict(line.split(": ", 1) for line in block.decode().split("\n") if not line.startswith(":"))
                if fields:
                    yield SSE(fields["event"], json.loads(fields["data"]), fields.get("id", ""))

    def leave(self) -> None:
        """Close the connection, whatever is under way."""
        self.socket.close()

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._held:
            self._more()
        found, _, self._held = self._held.partition(mark)
        return found

    def _exactly(self, size: int) -> bytes:
        while len(self._held) < size:
            self._more()
        found, self._held = self._held[:size], self._held[size:]
        return found

    def _more(self) -> None:
        piece = self.socket.recv(65536)
        assert piece, "the server closed the connection too soon"
        self._held += piece


@dataclass
class Server:
    """A running server."""

    url: str
    engines: list[Any]
    http: httpx.Client
    loop: asyncio.AbstractEventLoop
    stop: asyncio.Event
    readers: list[RawReader] = field(default_factory=list)

    @property
    def engine(self) -> Any:
        """The first engine."""
        return self.engines[0]

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.url.rpartition(":")[2])

    def submit(self, body: dict[str, Any], **params: Any) -> dict[str, Any]:
        """Submit a program that must be taken; the reply."""
        response = self.http.post("/v1/programs", json=body, params=params)
        assert response.status_code == 201, response.text
        reply: dict[str, Any] = response.json()
        return reply

    def value(self, program: str, name: str, wait: float = DEADLINE_S) -> Any:
        """The value of a variable, which must come to be set."""
        response = self.http.get(f"/v1/programs/{program}/variables/{name}", params={"wait": wait})
        assert response.status_code == 200, response.text
        return response.json()["value"]

    def open(self, path: str, *headers: str, receive_bytes: int | None = None) -> RawReader:
        """A GET over a bare socket; `headers` are whole lines."""
        lines = [f"GET {path} HTTP/1.1", "Host: parrot", *headers]
        reader = RawReader(self.port, ("\r\n".join(lines) + "\r\n\r\n").encode(), receive_bytes)
        self.readers.append(reader)
        return reader

    def send(self, request: bytes) -> RawReader:
        """Any bytes over a bare socket."""
        reader = RawReader(self.port, request)
        self.readers.append(reader)
        return reader

    def tasks(self) -> set[str]:
        """What runs in the server now: the coroutines that its tasks are in, from the outermost to the innermost."""
        names = set()
        for task in asyncio.all_tasks(self.loop):
            inner: Any = task.get_coro()
            while inner is not None and hasattr(inner, "cr_await"):
                names.add(inner.cr_code.co_qualname)
                inner = inner.cr_await
        return names


@contextmanager
def serving(*engines: Engine, **settings: Any) -> Iterator[Server]:
    """A server in a thread of its own, with these engines (or one scripted one) and settings; stopped at the end."""
    chosen: list[Engine] = list(engines) or [FakeEngine()]
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    urls: list[str] = []
    failures: list[BaseException] = []

    def run() -> None:
        options = Settings(port=0, engine="none", **settings)
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(serve(options, engines=chosen, on_listening=urls.append, stop=stop))
        except BaseException as error:
            failures.append(error)
            raise

    thread = threading.Thread(target=run, name="parrot-test-server")
    thread.start()
    until(lambda: urls or failures, "the server")
    assert urls, failures
    with httpx.Client(base_url=urls[0], timeout=60, trust_env=False) as http:
        server = Server(urls[0], chosen, http, loop, stop)
        until(
            lambda: http.get("/readyz").status_code == 200 or all(getattr(e, "down", False) for e in chosen),
            "an engine",
        )
        try:
            yield server
        finally:
            for reader in server.readers:
                reader.leave()
            loop.call_soon_threadsafe(stop.set)
            thread.join(30)
            assert not thread.is_alive(), "the server did not stop"


_MAIN = """
import asyncio, json, sys
from parrot_server.config import Settings
from parrot_server.engines.fake import FakeEngine
from parrot_server.server import serve

settings = Settings(port=0, engine="none", **json.loads(sys.argv[1]))
engine = FakeEngine(script=lambda request: "ok", context_tokens=10**7, kv_tokens=10**8)
asyncio.run(serve(settings, engines=[engine], on_listening=lambda url: print(url, flush=True)))
"""


@contextmanager
def serving_process(**settings: Any) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """A server in a process of its own, where what the test computes does not slow it; every call answers `ok`."""
    command = [sys.executable, "-c", _MAIN, json.dumps(settings)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url, process.stderr.read() if process.stderr else ""
            with httpx.Client(base_url=url, timeout=120, trust_env=False) as http:
                until(lambda: http.get("/readyz").status_code == 200, "an engine")
                yield process, http
        finally:
            process.kill()


def function(template: str, *outputs: str, **sampling: Any) -> dict[str, Any]:
    """A function as a body says it."""
    return {"template": template, "outputs": dict.fromkeys(outputs, sampling), "format": "text"}


def program(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A body whose calls may use the function `echo`: `Say {{x}} {{y}}`."""
    return {"functions": {"echo": function("Say {{x}} {{y}}", "y", max_tokens=30_000)}, "calls": list(calls), **more}


def echo(id: str, x: Any, y: str, **more: Any) -> dict[str, Any]:
    """A call of `echo`: binds x, sets the variable y."""
    return {"id": id, "function": "echo", "inputs": {"x": x}, "outputs": {"y": y}, **more}
