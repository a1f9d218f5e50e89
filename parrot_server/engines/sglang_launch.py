"""SGLang, launched by us: with the flags that we need, started again when it dies, stopped with us."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from parrot_server.core.model import CostModel, EngineSpec
from parrot_server.engines.base import Load
from parrot_server.engines.http import Patience
from parrot_server.engines.server_process import ServerProcess, free_port
from parrot_server.engines.sglang import SGLangEngine
from parrot_server.engines.tokens import PromptTokenizer
from parrot_server.errors import EngineError, SetupError

FLAGS = (
    "--enable-session-radix-cache",
    "--enable-priority-scheduling",
    "--enable-metrics",
    "--enable-cache-report",
    "--incremental-streaming-output",
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
        port = port or free_port()
        super().__init__(id, f"http://127.0.0.1:{port}", tokenizer=tokenizer, cost=cost, patience=patience)
        where = ("--model-path", model, "--host", "127.0.0.1", "--port", str(port))
        command = (python, "-m", "sglang.launch_server", *where, *FLAGS, *arguments)
        self._process = ServerProcess(id, "SGLang", command, environment, log)

    @property
    def process_id(self) -> int | None:
        """The server's process, while it runs."""
        return self._process.id

    async def start(self) -> EngineSpec:
        """Launch the server unless it runs, wait until it is ready, and ask it what it is. Raises EngineError, SetupError."""
        await self._process.bring_up(self._is_ready)
        return await super().start()

    async def load(self) -> Load:
        """As the server says. Raises EngineError when it is gone."""
        if self.process_id is None:
            raise self._process.died()
        return await super().load()

    async def close(self) -> None:
        """Stop the server and all that it started."""
        try:
            await super().close()
        finally:
            await self._process.stop()

    async def _is_ready(self) -> bool:
        for path in ("/ready", "/health"):  # older servers have no /ready
            with contextlib.suppress(EngineError):
                await self._http.get_text(path)
                return True
        return False
