"""Real SGLang keeps the contract, by its own API and by its OpenAI routes."""

from __future__ import annotations

import pytest

from parrot_server.engines.base import Engine
from parrot_server.engines.openai import OpenAIEngine
from parrot_server.engines.sglang import SGLangEngine
from tests.engines.contract import EngineContract, Harness
from tests.real_servers import RealHarness
from tests.sglang.conftest import Replicas

pytestmark = pytest.mark.sglang


class NativeHarness(RealHarness):
    """By SGLang's own API; the tokenizer is taken from the server's model folder."""

    def engine(self) -> Engine:
        return SGLangEngine("sglang", self.url)


class MessagesHarness(RealHarness):
    """By the OpenAI routes, without a tokenizer."""

    takes_control_tokens = False

    def engine(self) -> Engine:
        return OpenAIEngine("openai", self.url)

    async def busy(self, engine: Engine) -> bool:
        server = SGLangEngine("beside", self.url)
        await server.start()
        try:
            load = await server.load()
        finally:
            await server.close()
        return load.running + load.waiting > 0


class TestSGLangReal(EngineContract):
    """SGLang's own API."""

    @pytest.fixture(autouse=True)
    def server(self, replicas: Replicas) -> None:
        self.replicas = replicas

    def make_harness(self) -> Harness:
        return NativeHarness(self.replicas.roomy)


class TestOpenAIOnSGLangReal(EngineContract):
    """SGLang's OpenAI routes."""

    @pytest.fixture(autouse=True)
    def server(self, replicas: Replicas) -> None:
        self.replicas = replicas

    def make_harness(self) -> Harness:
        return MessagesHarness(self.replicas.roomy)
