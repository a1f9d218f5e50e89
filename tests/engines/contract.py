"""The contract that every engine keeps. A test file per adapter makes a harness and subclasses `EngineContract`.

What an engine says that it cannot do (`EngineSpec`), or what a harness cannot do to it, is skipped and says why.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from itertools import count

import pytest

from parrot_server.core.model import EngineSpec, Piece, PieceKind, Prompt, Sampling, Tier
from parrot_server.engines.base import Done, Engine, GenerateEvent, Load, Prefill, Request, Stalled, Taken, Text
from parrot_server.engines.fake_script import Answer
from parrot_server.errors import EngineError, Fault, ParrotError

CONSTANT = "You are a helpful assistant who answers in plain English and in short sentences. " * 8
CANARY = "canary7381"
RIDS = (f"{uuid.uuid4().hex[:8]}-{number}" for number in count())


class Harness:
    """How to make an engine, and what can be done to it. Subclasses say what they can."""

    exact_usage = True  # prompt tokens are counted, not estimated
    can_break = True  # `break_stream` works
    can_go = True  # `go_down` and `come_back` work
    scripted = True  # `answer` works
    control_token: str | None = None  # text that the model would take for a control token
    takes_control_tokens = True  # as text; else values that hold them are refused
    patience_s = 10.0  # the longest that one short call takes

    async def open(self) -> None:
        """Before a test."""

    async def close(self) -> None:
        """After it."""

    def engine(self) -> Engine:
        """A new engine, not started."""
        raise NotImplementedError

    def engine_to_close(self) -> Engine:
        """A new engine that is really closed, where `engine` shares one."""
        return self.engine()

    async def busy(self, engine: Engine) -> bool:
        """Whether anything runs or waits in the engine; a harness that can asks the engine itself, past the adapter."""
        load = await engine.load()
        return load.running + load.waiting > 0

    def answer(self, answer: Answer) -> None:
        """The next call is answered so."""
        raise NotImplementedError

    def break_stream(self) -> None:
        """The next call breaks off after some text."""
        raise NotImplementedError

    async def go_down(self) -> None:
        """The engine goes away, and with it all that ran there."""
        raise NotImplementedError

    async def come_back(self) -> None:
        """It is there again."""
        raise NotImplementedError


@dataclass(frozen=True)
class Outcome:
    """What came of a call."""

    events: list[GenerateEvent]

    @property
    def text(self) -> str:
        """The value."""
        return "".join(event.text for event in self.events if isinstance(event, Text))

    @property
    def done(self) -> Done:
        """The last event."""
        assert isinstance(self.events[-1], Done)
        return self.events[-1]


def chain(pieces: list[Piece]) -> Prompt:
    """A prompt whose prefixes are identities by content."""
    prefixes: list[str] = []
    digest = b""
    for piece in pieces:
        digest = hashlib.sha256(digest + f"{piece.kind}\0{piece.text}".encode()).digest()
        prefixes.append(digest.hex())
    return Prompt(tuple(pieces), tuple(prefixes), chat=any(piece.kind is PieceKind.ROLE for piece in pieces))


def ask(value: str, constant: str = "Tell a long story about this: ") -> Prompt:
    """One user turn: a constant text and a value."""
    role, text, data = PieceKind.ROLE, PieceKind.CONSTANT, PieceKind.VALUE
    return chain([Piece(role, "user"), Piece(text, constant), Piece(data, value), Piece(role, "assistant")])


def request(prompt: Prompt, *, salt: str = "", priority: int = 0, grant: int | None = None, **how: object) -> Request:
    """A request with an id of its own; `how` are fields of `Sampling`."""
    sampling = Sampling(**{"max_tokens": 12, **how})  # type: ignore[arg-type]
    return Request(next(RIDS), "", prompt, sampling, salt, priority, grant)


async def until(condition: Callable[[], Awaitable[bool]], within_s: float) -> None:
    """Wait until a condition holds; it must within the time."""
    end_s = time.monotonic() + within_s
    while not await condition():
        assert time.monotonic() < end_s, "not in time"
        await asyncio.sleep(0.01)


async def read_on(stream: AsyncIterator[GenerateEvent]) -> None:
    async for _ in stream:
        pass


@pytest.mark.anyio
class EngineContract:
    """The suite. A subclass says how to make its harness."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    def make_harness(self) -> Harness:
        raise NotImplementedError

    @pytest.fixture
    async def harness(self) -> AsyncIterator[Harness]:
        harness = self.make_harness()
        await harness.open()
        try:
            yield harness
        finally:
            await harness.close()

    @pytest.fixture
    async def engine(self, harness: Harness) -> AsyncIterator[Engine]:
        engine = harness.engine()
        await engine.start()
        try:
            yield engine
        finally:
            await engine.close()

    @pytest.fixture
    async def spec(self, harness: Harness, engine: Engine) -> EngineSpec:
        return await engine.start()

    async def read(self, harness: Harness, engine: Engine, call: Request, events: list[GenerateEvent]) -> None:
        async with asyncio.timeout(harness.patience_s), aclosing(engine.generate(call)) as stream:
            async for event in stream:
                events.append(event)

    async def run(self, harness: Harness, engine: Engine, call: Request) -> Outcome:
        events: list[GenerateEvent] = []
        await self.read(harness, engine, call, events)
        return Outcome(events)

    async def fail(self, harness: Harness, engine: Engine, call: Request) -> tuple[EngineError, list[GenerateEvent]]:
        events: list[GenerateEvent] = []
        with pytest.raises(EngineError) as caught:
            await self.read(harness, engine, call, events)
        return caught.value, events

    async def idle(self, harness: Harness, engine: Engine, within_s: float = 2.0) -> Load:
        """Wait until nothing runs or waits there. Returns what the engine then says of itself."""

        async def nothing_runs() -> bool:
            return not await harness.busy(engine) and (await engine.load()).running == 0

        await until(nothing_runs, within_s)
        return await engine.load()

    async def caught_running(self, engine: Engine, call: Request) -> AsyncGenerator[GenerateEvent, None]:
        stream = engine.generate(call)
        async for event in stream:
            if isinstance(event, Text):
                break
        return stream

    # What it is.

    async def test_says_what_it_is(self, engine: Engine, spec: EngineSpec) -> None:
        assert spec.id == engine.id
        assert spec.models
        assert spec.context_tokens > 0
        assert spec.kv_tokens > 0
        assert spec.max_running > 0

    # Order and completeness.

    async def test_events_come_in_order_and_end_in_one_done(self, harness: Harness, engine: Engine) -> None:
        outcome = await self.run(harness, engine, request(ask("a bird")))
        kinds = {Taken: "t", Prefill: "p", Text: "x", Stalled: "s", Done: "d"}
        assert re.fullmatch("t?p?x+d", "".join(kinds[type(event)] for event in outcome.events))
        assert outcome.text
        counts = [event.output_tokens for event in outcome.events if isinstance(event, Text)]
        assert counts == sorted(counts)
        assert all(event.text for event in outcome.events if isinstance(event, Text))

    async def test_usage(self, harness: Harness, engine: Engine) -> None:
        outcome = await self.run(harness, engine, request(ask("a bird")))
        usage = outcome.done.usage
        assert usage.prompt_tokens > 0
        assert 0 <= usage.cached_tokens < usage.prompt_tokens
        assert 0 < usage.output_tokens <= 12
        assert usage.estimated is not harness.exact_usage
        for event in outcome.events:
            if isinstance(event, Prefill):
                assert (event.prompt_tokens, event.cached_tokens) == (usage.prompt_tokens, usage.cached_tokens)

    async def test_max_tokens_is_a_bound_and_said(self, harness: Harness, engine: Engine) -> None:
        outcome = await self.run(harness, engine, request(ask("a bird"), max_tokens=5, ignore_eos=True))
        assert outcome.done.finish == "length"
        if harness.exact_usage:
            assert outcome.done.usage.output_tokens == 5

    async def test_a_greedy_call_alone_is_repeatable(self, harness: Harness, engine: Engine) -> None:
        first = await self.run(harness, engine, request(ask("a bird")))
        again = await self.run(harness, engine, request(ask("a bird")))
        assert first.text == again.text

    async def test_unicode_goes_in_and_comes_out_whole(self, harness: Harness, engine: Engine) -> None:
        outcome = await self.run(harness, engine, request(ask("Grüße 🦜 日本語 \u2028 e\u0301 \u200d"), max_tokens=24))
        assert outcome.text
        assert "\ufffd" not in outcome.text

    async def test_a_character_split_over_chunks_comes_out_whole(self, harness: Harness, engine: Engine) -> None:
        self.need(harness.scripted, "it has no script")
        bird = "🦜".encode()
        harness.answer(Answer(["a", bird[:1], bird[1:2], bird[2:3], bird[3:], "\u2028z", "\x85", "é"]))
        outcome = await self.run(harness, engine, request(ask("a bird")))
        assert outcome.text == "a🦜\u2028z\x85é"

    async def test_an_empty_answer_is_an_answer(self, harness: Harness, engine: Engine) -> None:
        self.need(harness.scripted, "it has no script")
        harness.answer(Answer(""))
        outcome = await self.run(harness, engine, request(ask("a bird")))
        assert outcome.text == ""
        assert outcome.done.finish == "stop"

    # Stop strings.

    @pytest.mark.parametrize("keep_stop", [False, True])
    async def test_a_stop_string_ends_the_text(self, harness: Harness, engine: Engine, keep_stop: bool) -> None:
        whole = (await self.run(harness, engine, request(ask("a bird"), max_tokens=16))).text
        middle = len(whole) // 2
        stop = whole[middle : middle + 5]
        call = request(ask("a bird"), max_tokens=16, stop=("\0never", stop), keep_stop=keep_stop)
        outcome = await self.run(harness, engine, call)
        begin = whole.index(stop)
        assert outcome.text == whole[: begin + len(stop) if keep_stop else begin]
        assert outcome.done.finish == "stop"
        assert outcome.done.stop == stop
        await self.idle(harness, engine)

    async def test_a_stop_string_across_chunks_is_never_shown(self, harness: Harness, engine: Engine) -> None:
        self.need(harness.scripted, "it has no script")
        harness.answer(Answer(["abc", "D", "EF", "GHI", "tail"]))
        outcome = await self.run(harness, engine, request(ask("a bird"), stop=("DEFGHI",)))
        assert outcome.text == "abc"
        harness.answer(Answer(["abc", "D", "EF", "GX"]))
        outcome = await self.run(harness, engine, request(ask("a bird"), stop=("DEFGHI",)))
        assert outcome.text == "abcDEFGX"

    # Aborting.

    async def test_closing_the_stream_frees_the_engine(self, harness: Harness, engine: Engine) -> None:
        call = request(ask("a bird"), max_tokens=400, ignore_eos=True)
        stream = await self.caught_running(engine, call)

        async def it_runs() -> bool:
            return (await engine.load()).running == 1

        await until(it_runs, 5.0)
        await stream.aclose()
        assert (await self.idle(harness, engine)).running == 0

    async def test_cancelling_the_reader_frees_the_engine(self, harness: Harness, engine: Engine) -> None:
        streaming = asyncio.Event()

        async def read() -> None:
            call = request(ask("a bird"), max_tokens=400, ignore_eos=True)
            async with aclosing(engine.generate(call)) as stream:
                async for event in stream:
                    if isinstance(event, Text):
                        streaming.set()

        readers = [asyncio.create_task(read()) for _ in range(3)]
        await asyncio.wait_for(streaming.wait(), harness.patience_s)
        for reader in readers:
            reader.cancel()
        assert all(
            isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*readers, return_exceptions=True)
        )
        await self.idle(harness, engine)

    async def test_a_stream_that_was_never_read_leaves_nothing(self, harness: Harness, engine: Engine) -> None:
        await engine.generate(request(ask("a bird"))).aclose()
        assert (await self.idle(harness, engine)).running == 0

    # The call's own faults.

    async def test_a_prompt_over_the_context_is_the_calls_fault(
        self, harness: Harness, engine: Engine, spec: EngineSpec
    ) -> None:
        words = f"{CANARY} " * spec.context_tokens
        for _ in range(3):
            error, events = await self.fail(harness, engine, request(ask(words)))
            assert (error.fault, error.type) == (Fault.CALL, "context_overflow")
            assert not any(isinstance(event, Text) for event in events)
            assert CANARY not in str(error)
        assert (await self.run(harness, engine, request(ask("a bird")))).text

    async def test_an_answer_over_the_context_is_the_calls_fault(
        self, harness: Harness, engine: Engine, spec: EngineSpec
    ) -> None:
        error, _ = await self.fail(harness, engine, request(ask("a bird"), max_tokens=spec.context_tokens))
        assert (error.fault, error.type) == (Fault.CALL, "context_overflow")

    async def test_an_unknown_model_is_the_calls_fault(self, harness: Harness, engine: Engine) -> None:
        call = Request("rid-model", "no-such-model", ask("a bird"), Sampling())
        error, _ = await self.fail(harness, engine, call)
        assert (error.fault, error.type) == (Fault.CALL, "unknown_model")

    async def test_a_control_token_in_a_value_is_text_or_refused(self, harness: Harness, engine: Engine) -> None:
        if harness.control_token is None:
            pytest.skip("no control token is known")
        plain = await self.run(harness, engine, request(ask("x")))
        marked = request(ask(f"x{harness.control_token * 4}x"))
        if not harness.takes_control_tokens:
            error, _ = await self.fail(harness, engine, marked)
            assert (error.fault, error.type) == (Fault.CALL, "control_token")
            assert "tokenizer" in error.message
            return
        # Each as text is several tokens; as a control token it would be one.
        usage = (await self.run(harness, engine, marked)).done.usage
        assert usage.prompt_tokens - plain.done.usage.prompt_tokens >= 8

    # The engine's faults.

    async def test_a_broken_stream_is_the_engines_fault(self, harness: Harness, engine: Engine) -> None:
        self.need(harness.can_break, "its streams cannot be broken from here")
        harness.break_stream()
        error, events = await self.fail(harness, engine, request(ask("a bird"), max_tokens=40))
        assert error.fault is Fault.ENGINE
        assert any(isinstance(event, Text) for event in events)
        assert not any(isinstance(event, Done) for event in events)
        assert (await self.run(harness, engine, request(ask("a bird")))).text

    async def test_gone_and_back(self, harness: Harness, engine: Engine) -> None:
        self.need(harness.can_go, "it cannot be taken down from here")
        stream = await self.caught_running(engine, request(ask("a bird"), max_tokens=400, ignore_eos=True))
        await harness.go_down()
        with pytest.raises(EngineError) as caught:
            async for _ in stream:
                pass
        assert caught.value.fault is Fault.ENGINE
        with pytest.raises(EngineError) as caught:
            await engine.load()
        assert caught.value.fault in (Fault.ENGINE, Fault.TIMEOUT)
        error, _ = await self.fail(harness, engine, request(ask("a bird")))
        assert error.fault is Fault.ENGINE
        with pytest.raises(ParrotError):
            await engine.start()
        await harness.come_back()
        await engine.start()
        assert (await self.run(harness, engine, request(ask("a bird")))).text
        await self.idle(harness, engine)

    async def test_what_runs_ends_when_the_engine_is_closed_which_may_be_repeated(self, harness: Harness) -> None:
        engine = harness.engine_to_close()
        await engine.start()
        stream = await self.caught_running(engine, request(ask("a bird"), max_tokens=400, ignore_eos=True))
        await engine.close()
        with pytest.raises(EngineError) as caught:
            await asyncio.wait_for(read_on(stream), harness.patience_s)
        assert caught.value.fault is Fault.ENGINE
        await engine.close()

    # Many at once.

    async def test_parallel_calls_do_not_mix(self, harness: Harness, engine: Engine) -> None:
        birds = [f"bird number {number}" for number in range(8)]
        outcomes = await asyncio.gather(*(self.run(harness, engine, request(ask(bird))) for bird in birds))
        assert all(outcome.text for outcome in outcomes)
        if harness.scripted:
            alone = [(await self.run(harness, engine, request(ask(bird)))).text for bird in birds]
            assert [outcome.text for outcome in outcomes] == alone
            assert len(set(alone)) == len(birds)
        await self.idle(harness, engine)

    # Prefixes.

    async def test_a_seen_beginning_is_reused_within_a_salt_only(
        self, harness: Harness, engine: Engine, spec: EngineSpec
    ) -> None:
        self.need(spec.shares_prefixes and harness.exact_usage, "it does not say that it shares prefixes")
        mine, others = uuid.uuid4().hex, uuid.uuid4().hex
        first = await self.run(harness, engine, request(ask("one", CONSTANT), salt=mine))
        second = await self.run(harness, engine, request(ask("two", CONSTANT), salt=mine))
        other = await self.run(harness, engine, request(ask("one", CONSTANT), salt=others))
        assert second.done.usage.cached_tokens > first.done.usage.cached_tokens + 30
        assert other.done.usage.cached_tokens < 30

    async def test_a_kept_prefix_is_there_before_its_first_call(
        self, harness: Harness, engine: Engine, spec: EngineSpec
    ) -> None:
        self.need(spec.can_pin, "it cannot pin")
        prompt = ask("three", CONSTANT)
        prefix = prompt.prefixes[1]
        head = prompt.head(prefix)
        tokens = await engine.keep(prefix, head, "", "", Tier.DEVICE, 60.0)
        outcome = await self.run(harness, engine, request(prompt))
        assert 100 < tokens <= outcome.done.usage.prompt_tokens  # as messages, a head is closed by the template
        assert outcome.done.usage.cached_tokens > tokens - 32  # some engines reuse whole blocks only
        await engine.keep(prefix, head, "", "", Tier.DEVICE, 60.0)
        await engine.keep(prefix, None, "", "", Tier.NONE, 0.0)
        await engine.keep("never-kept", None, "", "", Tier.NONE, 0.0)

    # Pausing.

    async def test_a_grant_is_a_bound_until_the_call_is_resumed(
        self, harness: Harness, engine: Engine, spec: EngineSpec
    ) -> None:
        self.need(spec.can_pause, "it cannot pause")
        whole = await self.run(harness, engine, request(ask("a bird")))
        call = request(ask("a bird"), grant=3)
        events: list[GenerateEvent] = []
        async with asyncio.timeout(harness.patience_s), aclosing(engine.generate(call)) as stream:
            async for event in stream:
                events.append(event)
                if isinstance(event, Stalled):
                    assert (await engine.load()).running == 0
                    await engine.resume(
                        call.rid, 4 if len([e for e in events if isinstance(e, Stalled)]) == 1 else None
                    )
        assert [event.output_tokens for event in events if isinstance(event, Stalled)] == [3, 7]
        assert Outcome(events).text == whole.text

    async def test_pause_and_resume(self, harness: Harness, engine: Engine, spec: EngineSpec) -> None:
        self.need(spec.can_pause, "it cannot pause")
        call = request(ask("a bird"), max_tokens=60, ignore_eos=True)
        stream = await self.caught_running(engine, call)
        await engine.pause(call.rid)
        async with asyncio.timeout(harness.patience_s):
            async for event in stream:
                if isinstance(event, Stalled):
                    break
            await engine.resume(call.rid, None)
            rest = [event async for event in stream]
        assert isinstance(rest[-1], Done)
        assert rest[-1].usage.output_tokens == 60
        await engine.pause("unknown")
        await engine.resume("unknown", None)

    async def test_a_paused_call_can_be_given_up(self, harness: Harness, engine: Engine, spec: EngineSpec) -> None:
        self.need(spec.can_pause, "it cannot pause")
        async with asyncio.timeout(harness.patience_s):
            stream = engine.generate(request(ask("a bird"), grant=1))
            async for event in stream:
                if isinstance(event, Stalled):
                    break
            assert isinstance(event, Stalled), "it was never paused"
            await stream.aclose()
        assert (await self.idle(harness, engine)).running == 0

    # Structured output.

    async def test_choices_bind(self, harness: Harness, engine: Engine, spec: EngineSpec) -> None:
        self.need(spec.schemas, "it enforces no grammar")
        outcome = await self.run(harness, engine, request(ask("a bird"), choices=("parrot", "heron")))
        assert outcome.text in ("parrot", "heron")

    def need(self, condition: bool, otherwise: str) -> None:
        if not condition:
            pytest.skip(otherwise)
