"""The OpenAI-compatible adapter keeps the contract against each kind of server, with and without a tokenizer."""

from __future__ import annotations

from parrot_server.engines.base import Engine, Request
from parrot_server.engines.fake import FakeEngine
from parrot_server.engines.fake_http import FakeServer, FlavourName
from parrot_server.engines.fake_http_wire import Wire
from parrot_server.engines.fake_script import Answer
from parrot_server.engines.openai import OpenAIEngine
from tests.engines.contract import EngineContract, Harness
from tests.engines.tiny import tiny_tokenizer


def long_if_wanted(request: Request) -> Answer | None:
    """Hosted servers know no `ignore_eos`: what is to be caught running must be long by itself."""
    return Answer([" word"] * 400) if request.sampling.max_tokens >= 400 else None


class OpenAIHarness(Harness):
    """The adapter before a scripted server."""

    control_token = "<|im_end|>"

    def __init__(self, flavour: FlavourName, exact: bool = False) -> None:
        self.takes_control_tokens = exact
        self._tokenizer = tiny_tokenizer() if exact else None
        inner = FakeEngine(token_s=0.002, context_tokens=4096, kv_tokens=65_536)
        tokenize = self._tokenizer.encode_text if self._tokenizer else None
        self.server = FakeServer(flavour, engine=inner, tokenize=tokenize)

    async def open(self) -> None:
        await self.server.come_back()

    async def close(self) -> None:
        await self.server.go_down()

    def engine(self) -> Engine:
        return OpenAIEngine("openai", self.server.url, tokenizer=self._tokenizer, context_tokens=4096)

    def answer(self, answer: Answer) -> None:
        self.server.engine.script = [answer]

    def break_stream(self) -> None:
        self.server.wires = [Wire(fault="cut")]

    async def go_down(self) -> None:
        await self.server.go_down()

    async def come_back(self) -> None:
        await self.server.come_back()

    async def busy(self, engine: Engine) -> bool:
        load = await self.server.engine.load()
        return load.running + load.waiting > 0


class TestOpenAIHosted(EngineContract):
    """A server of which nothing is known."""

    def make_harness(self) -> Harness:
        harness = OpenAIHarness("openai")
        harness.server.engine.script = long_if_wanted
        return harness


class TestOpenAIvLLMMessages(EngineContract):
    """vLLM, without a tokenizer here."""

    def make_harness(self) -> Harness:
        return OpenAIHarness("vllm")


class TestOpenAIvLLMExact(EngineContract):
    """vLLM, prompts as token ids."""

    def make_harness(self) -> Harness:
        return OpenAIHarness("vllm", exact=True)


class TestOpenAILlamaCppMessages(EngineContract):
    """llama.cpp's server, without a tokenizer here."""

    def make_harness(self) -> Harness:
        return OpenAIHarness("llama.cpp")


class TestOpenAILlamaCppExact(EngineContract):
    """llama.cpp's server, prompts as token ids."""

    def make_harness(self) -> Harness:
        return OpenAIHarness("llama.cpp", exact=True)


class TestOpenAISGLang(EngineContract):
    """SGLang by its OpenAI routes."""

    def make_harness(self) -> Harness:
        return OpenAIHarness("sglang", exact=True)
