"""The SGLang adapter keeps the contract against servers that were started with all flags, with few, and with old paths."""

from __future__ import annotations

from typing import Any

from parrot_server.engines.base import Engine
from parrot_server.engines.fake import FakeEngine
from parrot_server.engines.fake_http import FakeServer
from parrot_server.engines.fake_http_wire import Wire
from parrot_server.engines.fake_script import Answer
from parrot_server.engines.sglang import SGLangEngine
from tests.engines.contract import EngineContract, Harness
from tests.engines.tiny import tiny_tokenizer

FEW_FLAGS: dict[str, Any] = {
    "enable_session_radix_cache": False,
    "enable_priority_scheduling": False,
    "abort_on_priority_when_disabled": True,
    "enable_metrics": False,
    "grammar_backend": "none",
}


class SGLangHarness(Harness):
    """The adapter before a scripted server with SGLang's routes."""

    control_token = "<|im_end|>"

    def __init__(self, settings: dict[str, Any] | None = None, exact: bool = True) -> None:
        self.takes_control_tokens = exact
        self._tokenizer = tiny_tokenizer() if exact else None
        inner = FakeEngine(token_s=0.002, context_tokens=4096, kv_tokens=65_536, abort_s=0.02)
        tokenize = self._tokenizer.encode_text if self._tokenizer else None
        self.server = FakeServer("sglang", engine=inner, settings=settings, tokenize=tokenize)

    async def open(self) -> None:
        await self.server.come_back()

    async def close(self) -> None:
        await self.server.go_down()

    def engine(self) -> Engine:
        return SGLangEngine("sglang", self.server.url, tokenizer=self._tokenizer)

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


class TestSGLang(EngineContract):
    """A server with all the flags that help."""

    def make_harness(self) -> Harness:
        return SGLangHarness()


class TestSGLangIncremental(EngineContract):
    """A server whose streams bear the new text only."""

    def make_harness(self) -> Harness:
        return SGLangHarness({"incremental_streaming_output": True})


class TestSGLangFewFlags(EngineContract):
    """A server as it comes: no sessions, no priorities, no grammar."""

    def make_harness(self) -> Harness:
        return SGLangHarness(FEW_FLAGS)


class TestSGLangMessages(EngineContract):
    """A server whose tokenizer is not at hand."""

    def make_harness(self) -> Harness:
        return SGLangHarness(exact=False)
