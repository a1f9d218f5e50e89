"""The runtime on a virtual clock with scripted engines: what runs, what ends, and that nothing hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from parrot_server.clock import run_virtual
from parrot_server.core.events import CallChanged, Cancelled, Event, Resolve, Submitted, VariableSet
from parrot_server.core.model import CallSpec, CallState, Failure, FunctionSpec, Op, ProgramState, Ref, Sampling, Value
from parrot_server.core.settings import SchedulerSettings
from parrot_server.engines.base import Request
from parrot_server.engines.fake import Answer, FakeEngine
from parrot_server.engines.fake_script import prompt_text
from parrot_server.errors import EngineError, Fault, Refused
from parrot_server.journal import NullJournal
from parrot_server.program_log import ProgramMoved
from parrot_server.runtime import Runtime, RuntimeSettings
from parrot_server.streams import Delta, Reset, StreamItem
from parrot_server.timeouts import Timeouts

ECHO = FunctionSpec("f" * 64, "echo", "Say {{x}} {{y}}", (("y", Sampling(max_tokens=2000)),), format="text")


def call(id: str, x: Value | Ref, y: str, **more: Any) -> CallSpec:
    return CallSpec(id, Op.GENERATE, (("x", x),), (("y", y),), function=ECHO.id, **more)


def text(value: str) -> Value:
    return Value(value, 1)


def play(main: Coroutine[Any, Any, None]) -> None:
    """Run in virtual time, for at most a virtual day."""
    run_virtual(asyncio.wait_for(main, 86_400))


async def submit(runtime: Runtime, *calls: CallSpec, **more: Any) -> str:
    program = runtime.new_program_id()
    await runtime.post(Submitted(program, functions=(ECHO,), calls=calls, **more))
    return program


async def outcome(runtime: Runtime, program: str, name: str, wait_s: float = 3600) -> Value | Failure | None:
    return (await runtime.variable(program, name, wait_s)).outcome


async def read_all(runtime: Runtime, program: str, name: str) -> list[StreamItem]:
    return [item async for item in await runtime.stream(program, name)]


def joined(items: list[StreamItem]) -> str:
    """What a reader has who follows the rules."""
    held = ""
    for item in items:
        if isinstance(item, Reset):
            held = ""
        elif isinstance(item, Delta):
            assert item.offset == len(held)
            held += item.text
    return held


def test_a_value_flows_along_an_edge() -> None:
    async def main() -> None:
        engine = FakeEngine(script=["one", "two"])
        async with Runtime([engine]) as runtime:
            program = await submit(runtime, call("a", text("go"), "v"), call("b", Ref("v"), "w"))
            assert (await outcome(runtime, program, "w")) == Value("two", 1)
        assert engine.prompts == ["Say go ", "Say one "]
        assert runtime.scheduler.program(program).state is ProgramState.DONE

    play(main())


def test_what_is_refused_leaves_no_trace() -> None:
    async def main() -> None:
        async with Runtime([FakeEngine()]) as runtime:
            with pytest.raises(Refused, match="unset"):
                await submit(runtime, call("a", Ref("unset"), "v"))
            assert runtime.scheduler.programs() == []
            with pytest.raises(Refused) as refused:
                await runtime.variable("nobody", "v")
            assert refused.value.status == 404

    play(main())


def test_the_log_tells_what_happened_and_ends() -> None:
    async def main() -> None:
        async with Runtime([FakeEngine(script=["one"])]) as runtime:
            program = await submit(runtime, call("a", text("go"), "v"))
            entries = [entry async for entry in await runtime.events(program)]
            assert [entry.cursor for entry in entries] == list(range(1, len(entries) + 1))
            states = [entry.what.state for entry in entries if isinstance(entry.what, CallChanged)]
            assert states == [CallState.READY, CallState.SENT, CallState.RUNNING, CallState.DONE]
            assert [entry.what for entry in entries if isinstance(entry.what, Resolve)] == [
                Resolve(program, "v", Value("one", 1))
            ]
            moves = [entry.what.state for entry in entries if isinstance(entry.what, ProgramMoved)]
            assert moves == [ProgramState.RUNNING, ProgramState.DONE]
            assert [entry async for entry in await runtime.events(program, 3)] == entries[3:]

    play(main())


def test_a_stream_is_the_value_in_pieces_for_early_and_late_readers() -> None:
    async def main() -> None:
        engine = FakeEngine(script=[Answer("hello wörld, long enough", delays_s=0.1)])
        async with Runtime([engine]) as runtime:
            program = await submit(runtime, call("a", text("go"), "v"))
            items = await read_all(runtime, program, "v")
            assert len([item for item in items if isinstance(item, Delta)]) > 3
            assert joined(items) == "hello wörld, long enough"
            assert items[-1] == Value("hello wörld, long enough", 6)
            late = await read_all(runtime, program, "v")
            assert late == [Delta(0, "hello wörld, long enough", 1), items[-1]]
            back = [item async for item in await runtime.stream(program, "v", 1, 20)]
            assert back == [Delta(20, "ough", 1), items[-1]]

    play(main())


def test_a_retry_after_text_resets_the_readers() -> None:
    async def main() -> None:
        broken = EngineError(Fault.ENGINE, "stream_broken", "cut")
        engine = FakeEngine(script=[Answer("hello wo", then=broken, delays_s=0.1), "hello world"])
        async with Runtime([engine]) as runtime:
            program = await submit(runtime, call("a", text("go"), "v"))
            items = await read_all(runtime, program, "v")
            assert Reset(2) in items
            assert joined(items) == "hello world" == items[-1].text  # type: ignore[union-attr]
            assert runtime.scheduler.program(program).wasted.output_tokens == 2

    play(main())


def test_a_fallback_that_was_not_streamed_resets_the_readers() -> None:
    async def main() -> None:
        bad = EngineError(Fault.CALL, "bad", "no")
        engine = FakeEngine(script=[Answer("hello wo", then=bad, delays_s=0.1)])
        async with Runtime([engine]) as runtime:
            program = await submit(runtime, call("a", text("go"), "v", fallback=(("y", text("sorry")),)))
            items = await read_all(runtime, program, "v")
            assert joined(items) == "sorry" == items[-1].text  # type: ignore[union-attr]

    play(main())


@pytest.mark.parametrize("answered", [0, 2])
def test_an_engine_that_falls_silent_is_left_for_another(answered: int) -> None:
    async def main() -> None:
        silent = FakeEngine("silent", script=lambda request: Answer("hello wo", then="hang", after=answered))
        other = FakeEngine("other", script=lambda request: "hello world", token_s=0.001)
        settings = RuntimeSettings(timeouts=Timeouts(first_token_s=5, idle_s=3))
        async with Runtime([silent, other], settings) as runtime:
            programs = [await submit(runtime, call("a", text("go"), "v")) for _ in range(8)]
            begun = runtime.now_s()
            for program in programs:
                assert (await outcome(runtime, program, "v")) == Value("hello world", 3)
            assert silent.requests, "nothing was sent to the silent one"
            assert len(silent.aborts) == len(silent.requests)
            assert runtime.now_s() - begun < 60

    play(main())


def test_a_call_s_own_timeout_ends_it() -> None:
    async def main() -> None:
        engine = FakeEngine(script=lambda request: Answer("word " * 1000, delays_s=1))
        async with Runtime([engine]) as runtime:
            program = await submit(runtime, call("a", text("go"), "v", timeout_s=7.5))
            failure = await outcome(runtime, program, "v")
            assert isinstance(failure, Failure)
            assert "timeout" in failure.type
            assert 7 < runtime.now_s() < 30
            await asyncio.sleep(1)
            assert len(engine.aborts) == len(engine.requests)

    play(main())


def test_an_engine_that_never_comes_up_holds_nobody_up_for_ever() -> None:
    async def main() -> None:
        engine = FakeEngine()
        engine.go_down()
        async with Runtime([engine]) as runtime:
            program = await submit(runtime, call("a", text("go"), "v"))
            assert (await outcome(runtime, program, "v", 5)) is None
            assert runtime.engine_failures["fake"]
            engine.come_back()
            assert isinstance(await outcome(runtime, program, "v"), Value)
            assert not runtime.engine_failures

    play(main())


def test_a_crashed_engine_is_started_again_and_its_calls_run_again() -> None:
    async def main() -> None:
        engine = FakeEngine(script=[Answer("half", then="crash", delays_s=0.5), "whole"])
        async with Runtime([engine]) as runtime:
            program = await submit(runtime, call("a", text("go"), "v"))
            assert (await outcome(runtime, program, "v")) == Value("whole", 2)
            assert len(engine.requests) == 2

    play(main())


def test_a_slow_answer_about_load_is_not_death_while_text_comes() -> None:
    class Busy(FakeEngine):
        async def load(self) -> Any:
            await asyncio.sleep(25)
            return await super().load()

    async def main() -> None:
        engine = Busy(script=[Answer("word " * 100, delays_s=1)])
        async with Runtime([engine]) as runtime:
            program = await submit(runtime, call("a", text("go"), "v"))
            assert isinstance(await outcome(runtime, program, "v"), Value)
            assert len(engine.requests) == 1

    play(main())


def test_cancel_aborts_in_the_engine_and_tells_the_readers() -> None:
    async def main() -> None:
        engine = FakeEngine(script=lambda request: Answer("word " * 1000, delays_s=1))
        async with Runtime([engine]) as runtime:
            program = await submit(runtime, *(call(f"c{i}", text("go"), f"v{i}") for i in range(8)))
            reading = asyncio.create_task(read_all(runtime, program, "v0"))
            await asyncio.sleep(10)
            assert (await engine.load()).running == 8
            await runtime.post(Cancelled(program))
            items = await reading
            assert isinstance(items[-1], Failure)
            assert items[-1].type == "cancelled"
            await asyncio.sleep(0.1)
            assert (await engine.load()).running == 0
            assert len(engine.aborts) == 8
            sent = len(engine.requests)
            await asyncio.sleep(60)
            assert len(engine.requests) == sent

    play(main())


def test_an_engine_that_does_not_let_go_holds_nobody_up() -> None:
    async def main() -> None:
        engine = FakeEngine(script=lambda request: Answer("word " * 1000, delays_s=1), abort_s=10**6, max_running=1)
        async with Runtime([engine], RuntimeSettings(timeouts=Timeouts(abort_s=5))) as runtime:
            first = await submit(runtime, call("a", text("go"), "v"))
            await asyncio.sleep(3)
            await runtime.post(Cancelled(first))
            second = await submit(runtime, call("a", text("go"), "v"))
            await asyncio.sleep(10)
            assert runtime.scheduler.graph(second).nodes[0].state in (CallState.SENT, CallState.RUNNING)

    play(main())


def test_an_answer_over_the_limit_fails_after_one_attempt() -> None:
    async def main() -> None:
        engine = FakeEngine(script=lambda request: Answer(["x" * 1000] * 100))
        async with Runtime([engine], RuntimeSettings(value_bytes=20_000)) as runtime:
            program = await submit(runtime, call("a", text("go"), "v"))
            failure = await outcome(runtime, program, "v")
            assert isinstance(failure, Failure)
            assert failure.type == "value_too_large"
            assert "20000 bytes" in failure.message
            assert len(engine.requests) == len(engine.aborts) == 1

    play(main())


def test_a_variable_that_nobody_sets_is_waited_for_in_vain_and_leaves_no_watcher() -> None:
    async def main() -> None:
        async with Runtime([FakeEngine()]) as runtime:
            program = await submit(runtime, call("a", Ref("x"), "v"), variables=(("x", None),))
            begun = runtime.now_s()
            assert (await outcome(runtime, program, "x", 1)) is None
            assert runtime.now_s() - begun == pytest.approx(1)
            waiting = asyncio.create_task(outcome(runtime, program, "x"))
            await asyncio.sleep(1)
            waiting.cancel()
            await asyncio.wait([waiting])
            await runtime.post(VariableSet(program, "x", text("go")))
            assert isinstance(await outcome(runtime, program, "v"), Value)

    play(main())


def test_an_adapter_s_own_fault_ends_the_call_and_not_the_server(caplog: pytest.LogCaptureFixture) -> None:
    def script(request: Request) -> str:
        if "poison" in prompt_text(request.prompt):
            raise ZeroDivisionError(prompt_text(request.prompt))
        return "fine"

    async def main() -> None:
        async with Runtime([FakeEngine(script=script)]) as runtime:
            bad = await submit(runtime, call("a", text("poison CANARY"), "v"))
            failure = await outcome(runtime, bad, "v")
            assert isinstance(failure, Failure)
            good = await submit(runtime, call("a", text("go"), "v"))
            assert (await outcome(runtime, good, "v")) == Value("fine", 1)

    play(main())
    assert "incident" in caplog.text
    assert "CANARY" not in caplog.text


def test_a_lone_surrogate_from_an_engine_is_its_fault() -> None:
    async def main() -> None:
        async with Runtime([FakeEngine(script=lambda request: Answer(["a\ud83d"]))]) as runtime:
            program = await submit(runtime, call("a", text("go"), "v"))
            failure = await outcome(runtime, program, "v")
            assert isinstance(failure, Failure)
            assert failure.type == "invalid_text"

    play(main())


def test_ended_programs_are_forgotten_and_their_readers_leave() -> None:
    async def main() -> None:
        settings = RuntimeSettings(scheduler=SchedulerSettings(retained_programs=3))
        async with Runtime([FakeEngine()], settings) as runtime:
            programs = []
            for _ in range(6):
                programs.append(await submit(runtime, call("a", text("go"), "v")))
                await outcome(runtime, programs[-1], "v")
            assert runtime.scheduler.programs() == programs[-3:]
            with pytest.raises(Refused):
                await runtime.events(programs[0])
            with pytest.raises(Refused):
                runtime.owners.tenant(programs[0])

    play(main())


def test_two_runs_take_the_same_steps() -> None:
    def once() -> list[str]:
        seen: list[str] = []

        async def main() -> None:
            engine = FakeEngine(token_s=0.01, prefill_token_s=0.001, max_running=4)
            async with Runtime([engine]) as runtime:
                calls = [call(f"m{i}", text(f"part {i}"), f"s{i}") for i in range(12)]
                await runtime.post(Submitted("p", functions=(ECHO,), calls=(*calls, call("r", Ref("s3"), "v"))))
                async for entry in await runtime.events("p"):
                    seen.append(f"{entry.at_s:.9f} {entry.what}")

        play(main())
        return seen

    assert once() == once()


class Disk(NullJournal):
    """A journal that commits when it may, and breaks when it is told to."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.safe = 0
        self.may_commit = asyncio.Event()
        self.broken = False

    def append(self, now_s: float, event: Event) -> None:
        self.events.append(type(event).__name__)

    async def commit(self) -> None:
        await self.may_commit.wait()
        if self.broken:
            raise OSError(28, "No space left on device")
        self.safe = len(self.events)


def test_nothing_is_seen_before_it_is_committed() -> None:
    async def main() -> None:
        disk, engine = Disk(), FakeEngine(script=["one"])
        async with Runtime([engine], journal=disk) as runtime:
            submitting = asyncio.create_task(submit(runtime, call("a", text("go"), "v")))
            await asyncio.sleep(10)
            assert not submitting.done()
            assert engine.requests, "what stays inside need not wait"
            assert "Finished" in disk.events
            disk.broken = True
            disk.may_commit.set()
            await asyncio.sleep(10)
            assert not submitting.done()
            disk.broken = False
            program = await submitting
            assert (await outcome(runtime, program, "v")) == Value("one", 1)
            disk.may_commit.clear()
            late = asyncio.create_task(runtime.variable(program, "v"))
            await asyncio.sleep(10)
            assert late.done() is False
            disk.may_commit.set()
            assert (await late).outcome == Value("one", 1)

    play(main())


def test_a_journal_that_stays_broken_holds_nobody_for_ever() -> None:
    async def main() -> None:
        disk = Disk()
        disk.broken = True
        disk.may_commit.set()
        async with Runtime([FakeEngine()], journal=disk) as runtime:
            with pytest.raises(Refused) as refused:
                await submit(runtime, call("a", text("go"), "v"))
            assert (refused.value.type, refused.value.status) == ("journal_stuck", 503)
            taken = disk.events.count("Submitted")
            begun_s = runtime.now_s()
            with pytest.raises(Refused, match="cannot be written"):
                await submit(runtime, call("b", text("go"), "w"))
            assert (disk.events.count("Submitted"), runtime.now_s() - begun_s) == (taken, 0), (
                "it was taken, or it waited"
            )
            disk.broken = False
            await asyncio.sleep(10)
            assert await submit(runtime, call("b", text("go"), "w"))

    play(main())


def test_closing_leaves_no_task_behind() -> None:
    async def main() -> None:
        engine = FakeEngine(script=lambda request: Answer("word " * 1000, delays_s=1))
        before = asyncio.all_tasks()
        runtime = Runtime([engine])
        await runtime.start()
        await submit(runtime, call("a", text("go"), "v"))
        await asyncio.sleep(5)
        await runtime.close()
        assert asyncio.all_tasks() == before

    play(main())
