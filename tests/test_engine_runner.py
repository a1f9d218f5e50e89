"""One engine under care: orders in their order, prefixes brought and let go, progress told in time, revival."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypeVar

from parrot_server.clock import run_virtual
from parrot_server.core.events import (
    Abort,
    Aborted,
    Dispatch,
    EngineDown,
    EngineUp,
    Finished,
    Keep,
    KvChanged,
    Pause,
    Paused,
    Prefilled,
    Progress,
    Resume,
    Started,
    Warmed,
    WarmFailed,
)
from parrot_server.core.model import Piece, PieceKind, Prompt, Sampling, StepKey, Tier
from parrot_server.engine_runner import EngineRunner
from parrot_server.engines.base import GenerateEvent, Load, Request, Taken
from parrot_server.engines.fake import Answer, FakeEngine
from parrot_server.metrics import Metrics
from parrot_server.timeouts import Timeouts

KEY = StepKey("p", "c")
PROMPT = Prompt((Piece(PieceKind.CONSTANT, "Say something", 3),), ("prefix",), chat=False)
E = TypeVar("E")


@dataclass
class Watched:
    """A runner, and what it reported."""

    engine: FakeEngine
    timeouts: Timeouts = field(default_factory=Timeouts)
    events: list[Any] = field(default_factory=list)
    metrics: Metrics = field(default_factory=Metrics)

    async def __aenter__(self) -> Watched:
        self.runner = EngineRunner(
            self.engine, self.timeouts, 10**6, self.metrics, self.events.append, lambda generation: None
        )
        self.task = asyncio.create_task(self.runner.run())
        await self.next(EngineUp)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])
        await self.runner.close()

    def dispatch(self, attempt: int = 1, grant_tokens: int | None = None) -> None:
        self.runner.dispatch(
            Dispatch(KEY, attempt, self.engine.id, "v", "", PROMPT, Sampling(), "", grant_tokens=grant_tokens)
        )

    async def next(self, kind: type[E]) -> E:
        """Wait for an event of a kind, and forget what came before it."""
        async with asyncio.timeout(3600):
            while True:
                while self.events:
                    event = self.events.pop(0)
                    if isinstance(event, kind):
                        return event
                await asyncio.sleep(0.001)


def play(main: Coroutine[Any, Any, None]) -> None:
    run_virtual(asyncio.wait_for(main, 86_400))


def slow(tokens: int = 100) -> FakeEngine:
    return FakeEngine(script=lambda request: Answer(["w "] * tokens), token_s=0.02)


def test_a_call_is_told_of_from_start_to_end() -> None:
    async def main() -> None:
        async with Watched(slow()) as watched:
            watched.dispatch()
            finished = await watched.next(Finished)
            assert finished.value.text == "w " * 100
            assert finished.value.tokens == finished.usage.output_tokens == 100

    play(main())


def test_what_an_engine_says_of_its_own_queue_is_counted() -> None:
    class Telling(FakeEngine):
        async def generate(self, request: Request) -> AsyncGenerator[GenerateEvent, None]:
            async with aclosing(super().generate(request)) as events:
                async for event in events:
                    yield Taken(queue_s=0.25) if isinstance(event, Taken) else event

    async def main() -> None:
        async with Watched(Telling()) as watched:
            watched.dispatch()
            await watched.next(Finished)
            assert b'parrot_engine_queue_seconds_sum{engine="fake"} 0.25' in watched.metrics.page()

    play(main())


def test_progress_is_told_at_once_and_then_every_50_ms_at_the_most() -> None:
    async def main() -> None:
        async with Watched(slow()) as watched:
            watched.dispatch()
            await watched.next(Prefilled)
            loop = asyncio.get_running_loop()
            begun, told = loop.time(), []
            for _ in range(10):
                progress = await watched.next(Progress)
                told.append(loop.time() - begun)
                assert progress.output_tokens[0][:2] == (KEY, 1)
            assert told[0] < 0.03
            assert all(later - earlier > 0.045 for earlier, later in pairwise(told))

    play(main())


def test_pause_and_resume_keep_the_call() -> None:
    async def main() -> None:
        async with Watched(slow(), Timeouts(first_token_s=5, idle_s=1)) as watched:
            watched.dispatch(grant_tokens=10)
            assert (await watched.next(Paused)).output_tokens == 10
            await asyncio.sleep(600)  # a paused call is not idle
            watched.runner.resume(Resume(KEY, 1, "fake"))
            await watched.next(Progress)
            watched.runner.pause(Pause(KEY, 1, "fake"))
            paused = await watched.next(Paused)
            assert 10 < paused.output_tokens < 100
            watched.runner.resume(Resume(KEY, 1, "fake"))
            assert (await watched.next(Finished)).value.text == "w " * 100

    play(main())


def test_an_abort_is_reported_when_the_engine_has_let_go() -> None:
    async def main() -> None:
        engine = FakeEngine(script=lambda request: Answer("w " * 1000, delays_s=1), abort_s=2)
        async with Watched(engine) as watched:
            watched.dispatch()
            await watched.next(Started)
            begun = asyncio.get_running_loop().time()
            watched.runner.abort(Abort(KEY, 1, "fake"))
            assert await watched.next(Aborted) == Aborted(KEY, 1)
            assert asyncio.get_running_loop().time() - begun >= 2
            watched.runner.abort(Abort(KEY, 1, "fake"))  # one that is not there is gone already
            assert await watched.next(Aborted) == Aborted(KEY, 1)

    play(main())


def test_prefixes_are_warmed_and_let_go_in_the_order_of_the_wishes() -> None:
    async def main() -> None:
        async with Watched(FakeEngine(prefill_token_s=10)) as watched:
            for tier in (Tier.DEVICE, Tier.NONE):
                prompt = PROMPT if tier is Tier.DEVICE else None
                watched.runner.keep(Keep("prefix", "fake", tier, 0, prompt=prompt), hold_s=1000)
            assert await watched.next(Warmed) == Warmed("prefix", "fake", 3)
            await asyncio.sleep(1)
            assert [tier for _, tier in watched.engine.keeps] == [Tier.DEVICE, Tier.NONE]
            assert not watched.engine.pinned
            watched.engine.down = True
            watched.runner.keep(Keep("prefix", "fake", Tier.NONE, 0), hold_s=0)
            await asyncio.sleep(1)
            # It may have been asked for again since, and that would be taken to be gone.
            assert not any(isinstance(event, KvChanged | WarmFailed) for event in watched.events)
            watched.runner.keep(Keep("prefix", "fake", Tier.DEVICE, 0, prompt=PROMPT), hold_s=1000)
            assert "gone" in (await watched.next(WarmFailed)).message
            watched.runner.keep(Keep("prefix", "fake", Tier.HOST, 0, prompt=PROMPT), hold_s=1000)
            assert await watched.next(KvChanged) == KvChanged("prefix", "fake", Tier.HOST, 0)

    play(main())


def test_a_pin_that_an_engine_had_to_give_up_is_told_of() -> None:
    class Forgetful(FakeEngine):
        async def load(self) -> Load:
            return replace(await super().load(), lost=("prefix",))

    async def main() -> None:
        async with Watched(Forgetful()) as watched:
            lost = await watched.next(KvChanged)
            assert (lost.prefix, lost.tier) == ("prefix", Tier.NONE)

    play(main())


def test_an_engine_that_goes_and_comes_back_is_used_again() -> None:
    async def main() -> None:
        async with Watched(slow()) as watched:
            watched.dispatch()
            await watched.next(Started)
            watched.engine.go_down()
            await watched.next(EngineDown)
            await asyncio.sleep(100)
            assert not any(isinstance(event, EngineUp) for event in watched.events)
            watched.engine.come_back()
            await watched.next(EngineUp)
            watched.dispatch(attempt=2)
            assert (await watched.next(Finished)).attempt == 2

    play(main())


def test_a_call_that_is_aborted_before_its_task_began_is_let_go_at_once() -> None:
    async def main() -> None:
        async with Watched(slow()) as watched:
            loop = asyncio.get_running_loop()
            watched.dispatch()
            watched.runner.abort(Abort(KEY, 1, "fake"))
            began_s = loop.time()
            await watched.next(Aborted)
            assert loop.time() - began_s < 0.1
            assert watched.engine.requests == []

    play(main())


def test_what_was_to_be_kept_in_a_former_life_of_an_engine_is_not_told_of_in_the_next() -> None:
    class Stuck(FakeEngine):
        async def keep(self, *what: Any) -> int:
            self.keeps.append((what[0], what[4]))
            await asyncio.Event().wait()
            return 0

    async def main() -> None:
        async with Watched(Stuck(), Timeouts(keep_s=20.0)) as watched:
            watched.runner.keep(Keep("prefix", "fake", Tier.DEVICE, 60.0, "", "", PROMPT), 60.0)
            await asyncio.sleep(1)
            assert watched.engine.keeps
            watched.engine.go_down()
            await watched.next(EngineDown)
            watched.engine.come_back()
            await watched.next(EngineUp)
            watched.events.clear()
            await asyncio.sleep(60)
            assert not [event for event in watched.events if isinstance(event, Warmed | WarmFailed)]

    play(main())
