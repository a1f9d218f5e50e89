"""llama.cpp, launched by us: it comes back when it is killed, and stands in where only it is installed."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
from pathlib import Path

import pytest

from parrot_server.config import Settings
from parrot_server.engine_choice import own_engine
from parrot_server.engines.base import Done
from parrot_server.engines.llama_cpp import LlamaCppEngine
from parrot_server.errors import EngineError, Fault, SetupError
from tests.engines.contract import ask, request, until

needs_llama_cpp = pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is not installed")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


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
