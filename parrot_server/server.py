"""A server from its settings: engines, runtime, routes, and the socket that it listens on."""

from __future__ import annotations

import asyncio
import gc
import math
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import uvicorn

from parrot_sdk.errors import ParrotError as SdkError
from parrot_sdk.function_file import read_function_file
from parrot_server.api.app import create_app
from parrot_server.api.from_wire import function_spec
from parrot_server.config import Settings
from parrot_server.core.events import Registered
from parrot_server.core.model import FunctionSpec
from parrot_server.engine_choice import Progress, chosen_engines
from parrot_server.engines.base import Engine
from parrot_server.errors import Refused, SetupError
from parrot_server.journal import FileJournal, Header, Journal
from parrot_server.runtime import Runtime

KEEP_ALIVE_S = 75


async def serve(
    settings: Settings,
    *,
    engines: Sequence[Engine] | None = None,
    on_listening: Callable[[str], None] | None = None,
    progress: Progress = lambda what, done: None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM (in the main thread), or until `stop` is set.

    Args:
        settings: see `Settings`.
        engines: to be used instead of those that the settings name.
        on_listening: told the URL as soon as requests are taken; engines may still be coming up.
        progress: told what is going on while a model is fetched and prepared.
        stop: ends the server when it is set.

    Raises SetupError when this machine lacks something, such as a free port.
    """
    templates = read_templates(settings.templates) if settings.templates else []
    listener = _listen(settings)
    chosen = chosen_engines(settings, progress) if engines is None else engines
    async with Runtime(chosen, settings.runtime(), _journal(settings)) as runtime:
        for spec in templates:
            await runtime.post(Registered(spec))
        server = _Server(runtime, settings, on_listening or _no_matter, _url(settings, listener))
        tasks = [asyncio.create_task(_stop_on_setup_error(runtime, server))]
        if stop is not None:
            tasks.append(asyncio.create_task(_stop_on(stop, server)))
        try:
            with _signals(server), _calm_collector():
                await server.serve(sockets=[listener])
        finally:
            for task in tasks:
                task.cancel()
            listener.close()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(results[0], SetupError):
            raise results[0]


def read_templates(folder: Path) -> list[FunctionSpec]:
    """The functions of a folder of files. Raises SetupError with file, line and column."""
    paths = sorted(folder.glob("*.md"))
    if not paths:
        raise SetupError(f"{folder} holds no function files (*.md)")
    specs = []
    for path in paths:
        try:
            file = read_function_file(path)
            specs.append(function_spec(file.name, file))
        except SdkError as error:  # it names the file
            raise SetupError(str(error)) from error
        except Refused as error:
            raise SetupError(f"{path}: {error}") from error
        except OSError as error:
            raise SetupError(f"{path} cannot be read: {error.strerror}") from error
    return specs


class _Server(uvicorn.Server):
    """Sends the readers of streams away when it stops, and leaves signals to us."""

    def __init__(self, runtime: Runtime, settings: Settings, on_listening: Callable[[str], None], url: str) -> None:
        config = uvicorn.Config(
            create_app(runtime, settings),
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=math.ceil(settings.shutdown_s),
        )
        super().__init__(config)
        self._runtime = runtime
        self._on_listening = on_listening
        self._url = url

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take requests."""
        await super().startup(sockets)
        self._on_listening(self._url)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop; readers of streams would otherwise stay for ever."""
        self._runtime.closing.set()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: uvicorn would raise them again before the engines are stopped."""
        yield


@contextmanager
def _signals(server: uvicorn.Server) -> Iterator[None]:
    """SIGINT and SIGTERM stop the server; a second one does not wait for open requests."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        server.handle_exit(number, frame)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _calm_collector() -> Iterator[None]:
    """A large submit makes a million objects that stay; to look for garbage among them again and again doubles its time."""
    before = gc.get_threshold()
    gc.set_threshold(50_000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*before)


async def _stop_on(stop: asyncio.Event, server: uvicorn.Server) -> None:
    await stop.wait()
    server.should_exit = True


async def _stop_on_setup_error(runtime: Runtime, server: uvicorn.Server) -> None:
    try:
        await runtime.engines_up()
    except SetupError:
        server.should_exit = True
        raise


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=2048)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]  # the address follows there once more
        message = f"cannot listen on {settings.host}, port {settings.port}: {reason}; give another --port or --host"
        raise SetupError(message) from error
    # Connections inherit these. Answers go out at once, not when the client has acknowledged the part before.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # A peer that is there but takes nothing would keep its connection for ever.
        timeout_ms = int(2000 * settings.write_timeout_s)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
    return listener


def _url(settings: Settings, listener: socket.socket) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{listener.getsockname()[1]}"


def _journal(settings: Settings) -> Journal | None:
    if settings.journal is None:
        return None
    try:
        return FileJournal(settings.journal, Header(epoch_s=time.time(), settings=settings.runtime().scheduler))
    except OSError as error:
        raise SetupError(f"cannot record a journal in {settings.journal}: {error.strerror}") from error


def _no_matter(url: str) -> None:
    """Nobody wants to know."""
