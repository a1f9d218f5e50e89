"""Real vLLM keeps the contract, with prompts as token ids and as messages, and reads our priorities as we mean them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from parrot_server.engines.base import Engine, Text
from parrot_server.engines.openai import OpenAIEngine
from parrot_server.engines.tokens import PromptTokenizer
from tests.engines.contract import EngineContract, Harness, ask, request, until
from tests.real_servers import RealHarness

pytestmark = pytest.mark.vllm


class MessagesHarness(RealHarness):
    """Without a tokenizer."""

    takes_control_tokens = False

    def engine(self) -> Engine:
        return OpenAIEngine("vllm", self.url)


class ExactHarness(RealHarness):
    """With the tokenizer of the kit's model."""

    def __init__(self, url: str, folder: Path) -> None:
        super().__init__(url)
        self._tokenizer = PromptTokenizer.from_folder(folder)

    def engine(self) -> Engine:
        return OpenAIEngine("vllm", self.url, tokenizer=self._tokenizer)


class TestVLLMRealMessages(EngineContract):
    """Prompts as messages."""

    @pytest.fixture(autouse=True)
    def server(self, vllm: str) -> None:
        self.url = vllm

    def make_harness(self) -> Harness:
        return MessagesHarness(self.url)


class TestVLLMRealExact(EngineContract):
    """Prompts as token ids."""

    @pytest.fixture(autouse=True)
    def server(self, vllm: str, kit: str) -> None:
        self.url, self.folder = vllm, Path(kit) / "model"

    def make_harness(self) -> Harness:
        return ExactHarness(self.url, self.folder)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def engine(vllm: str) -> AsyncIterator[OpenAIEngine]:
    engine = OpenAIEngine("vllm", vllm)
    await engine.start()
    yield engine
    await engine.close()


@pytest.mark.anyio
async def test_an_urgent_call_overtakes_those_that_wait(engine: OpenAIEngine) -> None:
    order: list[str] = []

    async def call(name: str, priority: int, tokens: int) -> None:
        wanted = request(ask(name), priority=priority, max_tokens=tokens, ignore_eos=True)
        async with aclosing(engine.generate(wanted)) as events:
            async for event in events:
                if isinstance(event, Text) and name not in order:
                    order.append(name)

    async with asyncio.timeout(90), asyncio.TaskGroup() as group:
        for at in range(4):
            group.create_task(call(f"filler {at}", 0, 80))

        async def full() -> bool:
            return len(order) == 4

        await until(full, 60)
        for at in range(3):
            group.create_task(call(f"batch {at}", -1, 4))

        async def queued() -> bool:
            return (await engine.load()).waiting >= 3

        await until(queued, 60)
        group.create_task(call("expedited", 1, 4))
    assert order[4] == "expedited"


@pytest.mark.anyio
async def test_the_doctor_finds_that_salts_separate_tenants(engine: OpenAIEngine) -> None:
    found = {finding.ability: finding for finding in await engine.doctor()}
    assert "vllm" in found["server"].message
    assert found["isolation"].can is True
