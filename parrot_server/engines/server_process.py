"""An engine's server as a process of ours: started, looked after, and stopped with all that it started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from platformdirs import user_log_path

from parrot_server.errors import EngineError, Fault, SetupError

LOOK_S = 0.25
STOP_S = 5.0  # less than a runner gives an engine to close
LOG_TAIL_BYTES = 2_000
# Linux ends the child when we are gone, however we went. It has to ask for that itself, before it becomes the server.
DIE_WITH_PARENT = (
    "import ctypes, os, sys\n"
    "ctypes.CDLL(None).prctl(1, 15)\n"
    "os.getppid() == int(sys.argv[1]) and os.execvp(sys.argv[2], sys.argv[2:])"
)


class ServerProcess:
    """One process at a time, in a process group of its own.

    Args:
        engine: the engine's id.
        what: the server's name, for messages.
        command: what starts it; its first word is a Python interpreter.
        environment: further variables for it.
        log: what it says goes there; None: a file in the user's log folder.
    """

    def __init__(
        self,
        engine: str,
        what: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> None:
        self._engine = engine
        self._what = what
        self._command = command
        self._environment = dict(environment or {})
        name = f"{what.lower()}-{engine}.log"
        self._log = log or user_log_path("parrot", appauthor=False, ensure_exists=True) / name
        self._process: asyncio.subprocess.Process | None = None

    @property
    def id(self) -> int | None:
        """The process's id, while it runs."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def bring_up(self, is_ready: Callable[[], Awaitable[bool]]) -> None:
        """Start it unless it runs, and wait until it is ready. Raises EngineError when it ends instead, SetupError."""
        started = False
        while self.id is None or not await is_ready():
            if self.id is None and started:
                raise self.died()
            if self.id is None:
                await self._start()
                started = True
            await asyncio.sleep(LOOK_S)

    async def stop(self) -> None:
        """End it and all that it started: politely, then for good."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            if process.returncode is None:
                self._signal(process, signal.SIGTERM)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), STOP_S)
        finally:  # also when nobody has the patience to see it end
            self._signal(process, signal.SIGKILL if sys.platform != "win32" else signal.SIGTERM)
        await process.wait()

    def died(self) -> EngineError:
        """The error that tells of its end."""
        code = self._process.returncode if self._process else None
        message = f"{self._what} of engine {self._engine} ended (exit code {code}); the last it said is in {self._log}"
        if hint := self._hint():
            message += f": {hint}"
        return EngineError(Fault.ENGINE, "engine_gone", message)

    async def _start(self) -> None:
        await self.stop()  # what the dead one left behind
        command = list(self._command)
        if sys.platform == "linux":
            command = [command[0], "-c", DIE_WITH_PARENT, str(os.getpid()), *command]
        with self._log.open("ab") as log:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=os.environ | self._environment,
                    start_new_session=True,
                )
            except OSError as error:
                raise SetupError(f"{self._what} cannot be started with {command[0]}: {error.strerror}") from None

    def _signal(self, process: asyncio.subprocess.Process, which: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if sys.platform == "win32":
                process.send_signal(which)
            else:
                os.killpg(process.pid, which)

    def _hint(self) -> str:
        """The last line of an error that it logged, which names what is wrong with its flags, its model or its machine."""
        with contextlib.suppress(OSError), self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - LOG_TAIL_BYTES))
            lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines()]
            return next((line[:300] for line in reversed(lines) if "Error" in line or "error:" in line), "")
        return ""


def free_port() -> int:
    """A port of 127.0.0.1 on which nobody listens now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port
