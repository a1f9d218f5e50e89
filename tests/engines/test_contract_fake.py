"""The scripted engine keeps the contract."""

from __future__ import annotations

from parrot_server.engines.base import Engine
from parrot_server.engines.fake import FakeEngine
from parrot_server.engines.fake_script import Answer
from parrot_server.errors import EngineError, Fault
from tests.engines.contract import EngineContract, Harness


class FakeHarness(Harness):
    """One scripted engine, the same for all that the suite makes."""

    control_token = "<|im_end|>"

    def __init__(self) -> None:
        self._engine = FakeEngine(token_s=0.001)

    def engine(self) -> Engine:
        return self._engine

    def answer(self, answer: Answer) -> None:
        self._engine.script = [answer]

    def break_stream(self) -> None:
        broken = EngineError(Fault.ENGINE, "stream_broken", "the stream broke off")
        self._engine.script = [Answer("some text before", then=broken)]

    async def go_down(self) -> None:
        self._engine.go_down()

    async def come_back(self) -> None:
        self._engine.come_back()


class TestFakeEngine(EngineContract):
    """The scripted engine, in-process."""

    def make_harness(self) -> Harness:
        return FakeHarness()
