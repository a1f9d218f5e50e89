"""llama.cpp's server, launched by us, keeps the contract on the packaged model."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from parrot_server.engines.base import Engine
from parrot_server.engines.llama_cpp import LlamaCppEngine
from tests.engines.contract import EngineContract, Harness

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is not installed"),
]


class Shared(LlamaCppEngine):
    """Closing it is left to the fixture that made it."""

    async def close(self) -> None:
        """Not yet."""

    async def end(self) -> None:
        """Now."""
        await super().close()


class LlamaCppHarness(Harness):
    """One server for the whole suite."""

    scripted = False
    can_break = False
    can_go = False  # `test_llama_cpp.py` kills one
    control_token = "<|im_end|>"
    takes_control_tokens = False
    patience_s = 60.0

    def __init__(self, engine: LlamaCppEngine, log: Path) -> None:
        self._engine = engine
        self._log = log

    def engine(self) -> Engine:
        return self._engine

    def engine_to_close(self) -> Engine:
        return LlamaCppEngine(log=self._log)

    async def busy(self, engine: Engine) -> bool:
        async with httpx.AsyncClient(trust_env=False) as client:
            slots = (await client.get(f"{self._engine.url}/slots", timeout=10)).json()
        return any(slot["is_processing"] for slot in slots)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def shared(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shared]:
    engine = Shared(log=tmp_path_factory.mktemp("llama.cpp") / "log")
    await engine.start()
    yield engine
    await engine.end()


class TestLlamaCpp(EngineContract):
    """llama.cpp's server, launched by us, with the packaged model."""

    @pytest.fixture(scope="module")
    @classmethod
    def anyio_backend(cls) -> str:
        return "asyncio"

    @pytest.fixture(autouse=True)
    def _with_shared(self, shared: Shared, tmp_path: Path) -> None:
        self._shared = shared
        self._log = tmp_path / "log"

    def make_harness(self) -> Harness:
        return LlamaCppHarness(self._shared, self._log)
