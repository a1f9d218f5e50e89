"""llama.cpp's server from the `xllamacpp` wheel, launched by us: the engine of machines on which OpenVINO does not run.

It decodes several calls at once and enforces grammars. It shares no beginning of a prompt between calls that run at the same
time, and knows no priorities.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from parrot_server.core.model import EngineSpec
from parrot_server.engines.base import Load
from parrot_server.engines.embedded.model_files import DEFAULT_MODEL, gguf_file, in_thread, model_name
from parrot_server.engines.http import Patience
from parrot_server.engines.openai import OpenAIEngine
from parrot_server.engines.openai_flavour import LLAMA_CPP
from parrot_server.engines.server_process import ServerProcess, free_port
from parrot_server.engines.tokens import PromptTokenizer
from parrot_server.errors import EngineError, SetupError


class LlamaCppEngine(OpenAIEngine):
    """A model on this machine, by llama.cpp, in a process of its own that `start` launches, and again when it has died.

    Args:
        id: its name among the engines.
        model: `smollm2-135m` (fetched at first use), or the path of a GGUF file.
        progress: told what is going on while a model is fetched.
        tokenizer: of the model; with it prompts are exact.
        threads: None: llama.cpp's own choice.
        kv_tokens: room for KV, which the running calls share; None: the model's context, or what memory allows.
        log: what llama.cpp says goes there; None: a file in the user's log folder.
        patience: how long to wait for it once it is up.

    Raises:
        SetupError: xllamacpp is not installed.
    """

    def __init__(
        self,
        id: str = "llamacpp",
        model: str = DEFAULT_MODEL,
        *,
        progress: Callable[[str, float | None], None] = lambda what, done: None,
        tokenizer: PromptTokenizer | None = None,
        threads: int | None = None,
        kv_tokens: int | None = None,
        log: Path | None = None,
        patience: Patience | None = None,
    ) -> None:
        if not is_installed():
            raise SetupError("llama.cpp is not installed here: pip install 'parrot-serve[llamacpp]'")
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        super().__init__(id, self.url, tokenizer=tokenizer, flavour=LLAMA_CPP, patience=patience)
        self._path = model
        self._progress = progress
        self._asked_kv_tokens = kv_tokens
        module = "parrot_server.engines.llama_cpp_server"
        options = [model_name(model), str(port), str(kv_tokens or 0), str(threads or 0)]
        self._command = [sys.executable, "-m", module, *options]
        self._log = log
        self._process: ServerProcess | None = None

    @property
    def process_id(self) -> int | None:
        """The server's process, while it runs."""
        return self._process.id if self._process else None

    async def start(self) -> EngineSpec:
        """Fetch the model if need be, launch the server unless it runs, and ask it what it is. Raises EngineError, SetupError."""
        if self._process is None:
            file = await in_thread(gguf_file, self._path, self._progress)
            self._process = ServerProcess(self.id, "llama.cpp", [*self._command, str(file)], log=self._log)
        await self._process.bring_up(self._is_ready)
        spec = await super().start()
        self._spec = replace(spec, kv_tokens=self._asked_kv_tokens or spec.context_tokens)
        return self._spec

    async def load(self) -> Load:
        """What is running there for us. Raises EngineError when it is gone."""
        if self._process is not None and self._process.id is None:
            raise self._process.died()
        return await super().load()

    async def close(self) -> None:
        """Stop the server."""
        try:
            await super().close()
        finally:
            if self._process is not None:
                await self._process.stop()

    async def _is_ready(self) -> bool:
        try:
            await self._http.get_text("/health")
        except EngineError:
            return False
        return True


def is_installed() -> bool:
    """Whether llama.cpp can be launched here."""
    return importlib.util.find_spec("xllamacpp") is not None
