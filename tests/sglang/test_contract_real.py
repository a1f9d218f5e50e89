"""Real SGLang keeps the contract, by its own API and by its OpenAI routes."""

from __future__ import annotations

import pytest

from parrot_server.engines.base import Engine
from parrot_server.engines.openai import OpenAIEngine
from parrot_server.engines.sglang import SGLangEngine
from parrot_server.engines.tokens import PromptTokenizer
from tests.engines.contract import EngineContract, Harness
from tests.real_servers import RealHarness
from tests.sglang.conftest import Replicas

pytestmark = pytest.mark.sglang


class NativeHarness(RealHarness):
    """By SGLang's own API, with a tokenizer."""

    def __init__(self, url: str, tokenizer: PromptTokenizer) -> None:
        super().__init__(url)
        self._tokenizer = tokenizer

    def engine(self) -> Engine:
        return SGLangEngine("sglang", self.url, tokenizer=self._tokenizer)


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
    def server(self, replicas: Replicas, tokenizer: PromptTokenizer) -> None:
        self.replicas, self.tokenizer = replicas, tokenizer

    def make_harness(self) -> Harness:
        return NativeHarness(self.replicas.roomy, self.tokenizer)


class TestOpenAIOnSGLangReal(EngineContract):
    """SGLang's OpenAI routes."""

    @pytest.fixture(autouse=True)
    def server(self, replicas: Replicas) -> None:
        self.replicas = replicas

    def make_harness(self) -> Harness:
        return MessagesHarness(self.replicas.roomy)
