"""A scripted engine behind a real HTTP server: OpenAI's routes or SGLang's own, with faults on the wire.

    async with FakeServer("vllm") as server:
        server.wires.append(Wire(fault="cut", after=3))
        engine = OpenAIEngine("e", server.url)

What is answered, queued, cached and aborted is the business of the scripted engine inside (`server.engine`); here it becomes HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Literal, Self

import uvicorn
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from parrot_server.engines.fake import FakeEngine
from parrot_server.engines.fake_http_openai import openai_routes
from parrot_server.engines.fake_http_sglang import sglang_routes
from parrot_server.engines.fake_http_wire import Body, Wire, problem
from parrot_server.errors import EngineError, Fault

FlavourName = Literal["openai", "vllm", "llama.cpp", "sglang"]
Route = Callable[["FakeServer", Body], Awaitable[Response]]

OVERFLOW_SAID = {  # how servers say that a prompt is too long: message and type
    "openai": ("This model's maximum context length is 8 tokens. You sent more.", "context_length_exceeded"),
    "vllm": ("This model's maximum context length is 8 tokens. However, you requested more.", "BadRequestError"),
    "llama.cpp": ("the request exceeds the available context size, try increasing it", "exceed_context_size_error"),
    "sglang": ("The input (9 tokens) is longer than the model's context length (8 tokens).", "BadRequestError"),
}
STATUS = {Fault.CALL: 400, Fault.ENGINE: 500, Fault.BUSY: 503, Fault.TIMEOUT: 504}


class FakeServer:
    """One server on 127.0.0.1. An async context manager.

    Args:
        flavour: whose routes and manners.
        engine: the scripted engine inside; by default one that serves the model `fake`.
        settings: what the server was started with, as far as its flavour knows it: for SGLang, fields of `/server_info`;
            for vLLM, `priority` and `prompt_tokens_details` (both true unless said).
        api_key: a key that requests must bear.
        tokenize: the ids of a text, for the tokenize routes; without it there are none.
        routes: more routes, or others: "METHOD /path" to what answers it.
    """

    def __init__(
        self,
        flavour: FlavourName = "openai",
        *,
        engine: FakeEngine | None = None,
        settings: Body | None = None,
        api_key: str | None = None,
        tokenize: Callable[[str], list[int]] | None = None,
        routes: dict[str, Route] | None = None,
    ) -> None:
        self.flavour = flavour
        self.engine = engine or FakeEngine()
        self.settings = settings or {}
        self.tokenize = tokenize
        self.sessions: dict[str, tuple[float, str]] = {}  # SGLang's, by id: seconds that they hold, and the salt
        self.wires: list[Wire] = []
        self.bodies: list[tuple[str, Body]] = []
        self.port = 0
        self._api_key = api_key
        self._routes = openai_routes(flavour) | (sglang_routes() if flavour == "sglang" else {}) | (routes or {})
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Its base URL, without a path."""
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.come_back()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.go_down()

    async def come_back(self) -> None:
        """Listen, on the port that it had if it had one. Its cache is empty."""
        listener = socket.create_server(("127.0.0.1", self.port))
        # Connections inherit it: small writes go out at once, not when the one before was acknowledged.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port = listener.getsockname()[1]
        self.engine.come_back()
        self.sessions.clear()
        config = uvicorn.Config(
            self._app, log_level="critical", lifespan="off", access_log=False, ws="none", interface="asgi3"
        )
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve([listener]))
        await self._server.listening.wait()

    async def go_down(self) -> None:
        """Break every connection off and listen no more."""
        if self._server is None or self._serving is None:
            return
        self.engine.go_down()
        self._server.should_exit = self._server.force_exit = True
        for listener in self._server.servers:
            listener.close()
        for connection in list(self._server.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await self._serving
        self._server = self._serving = None

    def wire(self) -> Wire:
        """How the next generation goes over the wire."""
        return self.wires.pop(0) if self.wires else Wire()

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = HTTPRequest(scope, receive)
        name = f"{request.method} {request.url.path}"
        response = await self._respond(request, name)
        await response(scope, receive, send)

    async def _respond(self, request: HTTPRequest, name: str) -> Response:
        if self._api_key and request.headers.get("authorization") != f"Bearer {self._api_key}":
            return problem(401, "invalid api key", "authentication_error")
        route = self._routes.get(name)
        if route is None:
            return problem(404, "Not Found", "not_found")
        body: Body = json.loads(await request.body() or b"{}")
        if body:
            self.bodies.append((request.url.path, body))
        try:
            return await route(self, body)
        except EngineError as error:
            said = OVERFLOW_SAID[self.flavour] if error.type == "context_overflow" else (error.message, error.type)
            return problem(STATUS[error.fault], *said)


class _Server(uvicorn.Server):
    """Uvicorn beside other things in one loop: it leaves the process's signals alone, and says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
