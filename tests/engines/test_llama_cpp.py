"""llama.cpp, launched by us: it keeps the contract on the packaged model, comes back when it is killed, and stands in."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from parrot_server.config import Settings
from parrot_server.engine_choice import own_engine
from parrot_server.engines.base import Done, Engine
from parrot_server.engines.llama_cpp import LlamaCppEngine
from parrot_server.errors import EngineError, Fault, SetupError
from tests.engines.contract import EngineContract, Harness, ask, request, until

needs_llama_cpp = pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is not installed")


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
    can_go = False  # a test below kills it
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


@needs_llama_cpp
@pytest.mark.model
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


@needs_llama_cpp
@pytest.mark.model
@pytest.mark.anyio
async def test_killed_noticed_started_again_and_stopped(tmp_path: Path) -> None:
    engine = LlamaCppEngine(log=tmp_path / "log", kv_tokens=2048)
    try:
        spec = await engine.start()
        assert (spec.models, spec.context_tokens, spec.kv_tokens) == (("smollm2-135m",), 2048, 2048)
        process = engine.process_id
        assert process is not None
        os.kill(process, signal.SIGKILL)

        async def noticed() -> bool:
            try:
                await engine.load()
            except EngineError as error:
                return error.fault is Fault.ENGINE
            return False

        await until(noticed, 10)
        await engine.start()
        assert engine.process_id not in (None, process)
        assert isinstance([event async for event in engine.generate(request(ask("a bird")))][-1], Done)
    finally:
        await engine.close()
    assert engine.process_id is None


@needs_llama_cpp
@pytest.mark.anyio
async def test_a_file_that_is_no_model_is_said_to_be_so(tmp_path: Path) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(b"GGUF no more than this")
    engine = LlamaCppEngine(model=str(file), log=tmp_path / "log")
    with pytest.raises(EngineError, match=r"llama\.cpp of engine llamacpp ended \(exit code 1\)"):
        await engine.start()
    await engine.close()


def without(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    """As if these packages, and xllamacpp unless it is one of them, were not and were installed."""
    find = importlib.util.find_spec

    def found(name: str) -> object:
        return None if name in missing else find("httpx" if name == "xllamacpp" else name)

    monkeypatch.setattr(importlib.util, "find_spec", found)


def test_it_stands_in_where_only_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    unsaid = Settings(engine=None)
    without(monkeypatch)
    assert own_engine(unsaid) == "embedded"
    without(monkeypatch, "openvino")
    assert own_engine(unsaid) == "llamacpp"
    assert own_engine(Settings(engine="embedded")) == "embedded"
    assert own_engine(Settings(engine=None, sglang=("http://127.0.0.1:1",))) == "none"
    without(monkeypatch, "openvino", "xllamacpp")
    assert own_engine(unsaid) == "embedded"


def test_without_its_package_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "xllamacpp")
    with pytest.raises(SetupError, match=r"pip install 'parrot-serve\[llamacpp\]'"):
        LlamaCppEngine()


def test_only_a_model_that_is_there_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without(monkeypatch)
    with pytest.raises(SetupError, match=r"no model.*a \.gguf file"):
        asyncio.run(LlamaCppEngine(model=str(tmp_path)).start())
