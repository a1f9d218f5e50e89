"""The embedded engine keeps the contract, on the real model."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from parrot_server.engines.base import Engine
from parrot_server.engines.embedded import EmbeddedEngine
from tests.engines.contract import EngineContract, Harness
from tests.engines.shared_engine import SharedEngine

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def shared(anyio_backend: str) -> AsyncIterator[SharedEngine]:
    engine = SharedEngine(kv_tokens=32_768)
    await engine.start()
    yield engine
    await engine.end()


class EmbeddedHarness(Harness):
    """One engine process for the whole suite."""

    scripted = False
    can_break = False
    can_go = False  # its process can be killed, but starting again brings it back at once
    control_token = "<|im_end|>"
    patience_s = 60.0

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def engine(self) -> Engine:
        return self._engine

    def engine_to_close(self) -> Engine:
        return EmbeddedEngine(kv_tokens=2_048)


class TestEmbeddedEngine(EngineContract):
    """The embedded engine, with its packaged model."""

    @pytest.fixture(scope="module")
    @classmethod
    def anyio_backend(cls) -> str:
        return "asyncio"

    @pytest.fixture(autouse=True)
    def _with_shared(self, shared: SharedEngine) -> None:
        self._shared = shared

    def make_harness(self) -> Harness:
        return EmbeddedHarness(self._shared)
