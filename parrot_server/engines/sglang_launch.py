"""An SGLang server of our own: started with the flags that we need, started again when it dies, stopped with us."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from platformdirs import user_log_path

from parrot_server.core.model import CostModel, EngineSpec
from parrot_server.engines.base import Load
from parrot_server.engines.http import Patience
from parrot_server.engines.sglang import SGLangEngine
from parrot_server.engines.tokens import PromptTokenizer
from parrot_server.errors import EngineError, Fault, SetupError

FLAGS = (
    "--enable-session-radix-cache",
    "--enable-priority-scheduling",
    "--enable-metrics",
    "--enable-cache-report",
    "--incremental-streaming-output",
)
LOOK_S = 0.25
STOP_S = 10.0
LOG_TAIL_BYTES = 2_000
# Linux ends the child when we are gone, however we went. It has to ask for that itself, before it becomes SGLang.
DIE_WITH_PARENT = (
    "import ctypes, os, sys\n"
    "ctypes.CDLL(None).prctl(1, 15)\n"
    "os.getppid() == int(sys.argv[1]) and os.execvp(sys.argv[2], sys.argv[2:])"
)


class LaunchedSGLang(SGLangEngine):
    """An SGLang server that `start` launches, and launches again when it has died.

    Args:
        id: its name among the engines.
        model: a Hugging Face id or a folder.
        python: the interpreter of an environment that has SGLang.
        arguments: further flags for `sglang.launch_server`; they come last, so they win.
        environment: further variables for the server.
        port: where it listens; None: a free port.
        log: what it says goes there; None: a file in the user's log folder.
        tokenizer: of the model; None: from the model's folder.
        cost: what its work costs.
        patience: how long to wait for it once it is up.

    Raises:
        SetupError: SGLang is not installed.
    """

    def __init__(
        self,
        id: str,
        model: str,
        *,
        python: str = sys.executable,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        port: int | None = None,
        log: Path | None = None,
        tokenizer: PromptTokenizer | None = None,
        cost: CostModel | None = None,
        patience: Patience | None = None,
    ) -> None:
        if python == sys.executable and importlib.util.find_spec("sglang") is None:
            raise SetupError("SGLang is not installed here: pip install 'parrot-serve[sglang]'")
        self._port = port or free_port()
        super().__init__(id, f"http://127.0.0.1:{self._port}", tokenizer=tokenizer, cost=cost, patience=patience)
        self._python = python
        self._arguments = ("--model-path", model, "--host", "127.0.0.1", "--port", str(self._port), *FLAGS, *arguments)
        self._environment = dict(environment or {})
        self._log = log or user_log_path("parrot", appauthor=False, ensure_exists=True) / f"sglang-{id}.log"
        self._process: asyncio.subprocess.Process | None = None

    @property
    def process_id(self) -> int | None:
        """The server's process, while it runs."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def start(self) -> EngineSpec:
        """Launch the server unless it runs, wait until it is ready, and ask it what it is. Raises EngineError, SetupError."""
        launched = False
        while self.process_id is None or not await self._is_ready():
            if self.process_id is None and launched:
                raise self._died()
            if self.process_id is None:
                await self._launch()
                launched = True
            await asyncio.sleep(LOOK_S)
        return await super().start()

    async def load(self) -> Load:
        """As the server says. Raises EngineError when it is gone."""
        if self.process_id is None:
            raise self._died()
        return await super().load()

    async def close(self) -> None:
        """Stop the server and all that it started."""
        try:
            await super().close()
        finally:
            await self._stop()

    async def _launch(self) -> None:
        await self._stop()  # what the dead one left behind
        command = [self._python, "-m", "sglang.launch_server", *self._arguments]
        if sys.platform == "linux":
            command = [self._python, "-c", DIE_WITH_PARENT, str(os.getpid()), *command]
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
                raise SetupError(f"SGLang cannot be started with {self._python}: {error.strerror}") from None

    async def _is_ready(self) -> bool:
        for path in ("/ready", "/health"):  # older servers have no /ready
            with contextlib.suppress(EngineError):
                await self._http.get_text(path)
                return True
        return False

    async def _stop(self) -> None:
        """End the process group: politely, then for good."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            self._signal(process.pid, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), STOP_S)
        self._signal(process.pid, signal.SIGKILL)
        await process.wait()

    def _signal(self, group: int, which: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, which)

    def _died(self) -> EngineError:
        code = self._process.returncode if self._process else None
        message = f"SGLang of engine {self.id} ended (exit code {code}); the last it said is in {self._log}"
        if hint := self._hint():
            message += f": {hint}"
        return EngineError(Fault.ENGINE, "engine_gone", message)

    def _hint(self) -> str:
        """The last line of an error that SGLang logged, which names what is wrong with its flags, its model or its machine."""
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
