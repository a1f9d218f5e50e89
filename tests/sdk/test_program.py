"""Programs and variables against the whole server, on a clock that does not wait."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from parrot_sdk import (
    CallCancelled,
    CallFailed,
    FunctionError,
    Program,
    ProgramError,
    RequestRefused,
    StreamReset,
    UnresolvedError,
    Variable,
    WaitTimeout,
)
from parrot_sdk.testing import Answer, ScriptedServer, prompt_text
from parrot_server.errors import EngineError, Fault
from tests.sdk.functions import combine, headline, refine, summarize

BROKEN = EngineError(Fault.ENGINE, "stream_broken", "the stream broke")
FATAL = EngineError(Fault.CALL, "context_overflow", "the prompt is too long")


def test_a_graph_is_one_request() -> None:
    with ScriptedServer() as server:
        with server.program("book") as program:
            answer = combine(summarize.map([f"chapter {i}" for i in range(16)]))
            draft: Any = answer
            for step in range(20):
                draft = refine(draft, step=step)
            assert server.client.http_requests == 0
            assert program.id is None
        assert server.client.http_requests == 1
        assert "slept" in draft.get() or draft.get()
        assert server.client.http_requests == 2
        assert len(server.engine.requests) == 37
        assert program.info().state == "done"


def test_edges_carry_values() -> None:
    def script(request: Any) -> str:
        prompt = prompt_text(request.prompt).removesuffix("\n[assistant]\n")
        return prompt.rpartition("\n\n")[2].upper() if "Sum up" in prompt else prompt

    with ScriptedServer(script) as server:
        with server.program():
            answer = combine(summarize.map(["one", "{{two}}", "[user]"]))
        assert answer.get() == "[user]\nCombine:\nONE\n--\n{{TWO}}\n--\n[USER]"


def test_map_of_nothing_is_nothing_and_a_join_of_nothing_is_empty_text() -> None:
    with ScriptedServer() as server:
        with server.program():
            parts = summarize.map([])
            assert parts == []
            answer = combine(parts)
        answer.get()
        assert server.engine.prompts == ["[user]\nCombine:\n\n[assistant]\n"]


def test_several_outputs_see_what_is_before_them() -> None:
    with ScriptedServer(["Parrots", "parrots"]) as server:
        with server.program():
            title, slug = headline("birds")
        assert (title.get(), slug.get()) == ("Parrots", "parrots")
        assert server.engine.prompts[1].endswith("Title: Parrots\nSlug: ")
        assert title.call == slug.call == "headline-0"


def test_map_of_a_list_variable_is_done_by_the_server() -> None:
    with ScriptedServer(['["a", "b", "c"]', "A", "B", "C", "all"]) as server:
        with server.program():
            parts = summarize.map(refine("make a list").items())
            answer = combine(parts)
        assert answer.get() == "all"
        assert parts.get() == ["A", "B", "C"]
        assert "A\n--\nB\n--\nC" in server.engine.prompts[-1]


def test_a_field_of_a_value() -> None:
    with ScriptedServer(['{"author": {"name": "Ann"}}', "ok"]) as server:
        with server.program():
            name = refine("who").field("author.name")
            done = refine(name)
        assert (name.get(), done.get()) == ("Ann", "ok")
        assert server.engine.prompts[-1] == "Step 0 of Ann:"


def test_plain_control_flow_appends_to_the_live_program() -> None:
    with ScriptedServer(["no", "no", "yes", "end"]) as server:
        with server.program() as program:
            draft = refine("x")
            rounds = 0
            while draft.get() != "yes":
                draft = refine(draft, step=rounds)
                rounds += 1
            last = refine("unread")
            assert program.info().state in ("open", "running")
        assert rounds == 2
        assert last.get() == "end"
        info = program.info()
        assert info.state == "done"
        assert info.calls == {"done": 4}


def test_a_failed_call_raises_in_every_reader() -> None:
    with ScriptedServer([Answer(then=FATAL), "fine"]) as server:
        with server.program() as program:
            bad = refine("x")
            child = combine([bad])
        with pytest.raises(CallFailed, match="too long") as caught:
            bad.get()
        assert caught.value.type == "context_overflow"
        assert caught.value.call == "refine-0"
        assert str(caught.value) == f"call refine-0: {caught.value.message}"
        with pytest.raises(CallFailed) as caught:
            child.get()
        assert caught.value.call == "refine-0"
        assert str(caught.value) == f"call combine-0 needs call refine-0, which failed: {caught.value.message}"
        with pytest.raises(CallFailed):
            list(child.stream())
        assert child.done
        assert isinstance(child.error, CallFailed)
        assert program.info().state == "failed"


def test_fallback_and_attempts() -> None:
    answers: list[Any] = [Answer(then=BROKEN), Answer(then=BROKEN), "third time", Answer(then=FATAL)]
    with ScriptedServer(answers) as server:
        with server.program():
            kept = refine.using(attempts=3)("x")
        assert kept.get() == "third time"
        with server.program():
            saved = refine.using(fallback="instead")("x")
        assert saved.get() == "instead"


class TestUnresolved:
    @pytest.mark.parametrize(
        "use",
        [
            str,
            bool,
            len,
            list,
            lambda v: f"{v}",
            lambda v: f"{v:>10}",
            lambda v: "%s" % v,  # noqa: UP031
            lambda v: v + "x",
            lambda v: "x" + v,
            lambda v: "x" in v,
            lambda v: v == "yes",
            lambda v: v != "yes",
            lambda v: not v,
            lambda v: [*v],
        ],
    )
    def test_use_as_text_is_an_error_that_says_what_to_do(self, use: Callable[[Any], object]) -> None:
        with ScriptedServer() as server, server.program():
            variable = summarize("x")
            with pytest.raises(UnresolvedError, match=r"'summarize-0'.*pass it to a function.*\.get\(\) or await"):
                use(variable)
            assert server.client.http_requests == 0

    def test_after_the_value_was_read_it_acts_as_the_value(self) -> None:
        with ScriptedServer(["yes"]) as server, server.program():
            variable = summarize("x")
            variable.get()
            assert (str(variable), f"{variable:>4}", len(variable), variable == "yes") == ("yes", " yes", 3, True)

    def test_what_is_always_fine(self) -> None:
        with ScriptedServer() as server, server.program():
            one, two = summarize("x"), summarize("y")
            assert one != two
            assert one == one
            assert {one: 1}[one] == 1
            assert two not in [one]
            assert "summarize-0" in repr(one)
            assert server.client.http_requests == 0


class TestBlocks:
    def test_a_call_outside_is_an_error(self) -> None:
        with pytest.raises(ProgramError, match="inside `with Program"):
            summarize("x")
        with ScriptedServer() as server:
            with server.program() as program:
                variable = summarize("x")
            with pytest.raises(ProgramError, match="outside a program"):
                summarize("x")
            with pytest.raises(ProgramError, match="block has ended"):
                variable.field("a")
            with pytest.raises(ProgramError, match="used already"), program:
                pass

    def test_an_empty_block_sends_nothing(self) -> None:
        with ScriptedServer() as server:
            with server.program():
                pass
            assert server.client.http_requests == 0

    def test_blocks_nest(self) -> None:
        with ScriptedServer() as server, server.program("outer") as outer:
            first = summarize("x")
            with server.program("inner") as inner:
                second = summarize("y")
            third = summarize("z")
            assert [v.program for v in (first, second, third)] == [outer, inner, outer]

    def test_a_variable_of_another_program_is_refused(self) -> None:
        with ScriptedServer() as server:
            with server.program():
                foreign = summarize("x")
            with server.program():
                with pytest.raises(FunctionError, match="belongs to another program"):
                    combine([foreign])
                with pytest.raises(FunctionError, match="belongs to another program"):
                    refine.using(after=[foreign])("x")

    def test_an_exception_cancels(self) -> None:
        with ScriptedServer([Answer(then="hang")]) as server:
            variables: list[Variable[str]] = []

            def block(program: Program) -> None:
                with program:
                    variables.append(refine("x"))
                    variables[0].get(timeout_s=5)

            program = server.program()
            with pytest.raises(WaitTimeout, match="no value after 5 s"):
                block(program)
            assert program.info().state == "cancelled"
            with pytest.raises(CallCancelled):
                variables[0].get()
            assert len(server.engine.aborts) == 1

    def test_an_exception_before_anything_was_sent_sends_nothing(self) -> None:
        with ScriptedServer() as server:
            variables: list[Variable[str]] = []

            def block() -> None:
                with server.program():
                    variables.append(refine("x"))
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                block()
            assert server.client.http_requests == 0
            with pytest.raises(CallCancelled, match="before this was sent"):
                variables[0].get()

    def test_cancel(self) -> None:
        with ScriptedServer([Answer(then="hang")]) as server:
            with server.program() as program:
                running, waiting = refine("x"), None
                waiting = refine(running)
            with pytest.raises(WaitTimeout):
                running.get(timeout_s=1)
            program.cancel()
            program.cancel()
            for variable in (running, waiting):
                with pytest.raises(CallCancelled):
                    variable.get()
            assert program.info().state == "cancelled"

    def test_a_refused_program_says_why_and_stays_refused(self) -> None:
        with ScriptedServer(settings={"calls_per_program": 3}) as server:
            program = server.program()
            with pytest.raises(RequestRefused, match="calls_per_program allows 3") as caught, program:
                parts = summarize.map(["a", "b", "c", "d"])
            assert (caught.value.type, caught.value.status) == ("limit_exceeded", 422)
            with pytest.raises(RequestRefused, match="calls_per_program"):
                parts[0].get()
            assert server.engine.requests == []

    def test_refused_calls_of_a_live_program(self) -> None:
        limits = {"calls_per_program": 2}
        with ScriptedServer(settings=limits) as server, server.program() as program:
            first = refine("x")
            assert first.get()
            second = combine(summarize.map(["a", "b"]))
            for _ in range(2):
                with pytest.raises(RequestRefused, match="calls_per_program"):
                    second.get()
            with pytest.raises(RequestRefused, match="calls_per_program"):
                refine("y")
            assert program.info().calls == {"done": 1}
            assert first.done


def test_waiting_ends_in_time_and_the_program_goes_on() -> None:
    with ScriptedServer(token_s=1) as server:
        with server.program():
            variable = refine("x")
        begun_s = server.now_s
        with pytest.raises(WaitTimeout):
            variable.get(timeout_s=0)
        assert server.now_s == begun_s
        assert not variable.done
        with pytest.raises(WaitTimeout, match=r"after 4\.5 s; its program goes on"):
            variable.get(timeout_s=4.5)
        assert server.now_s == pytest.approx(begun_s + 4.5)
        assert variable.get()
        assert server.now_s == pytest.approx(begun_s + 12)
        assert variable.done


def test_a_wait_longer_than_one_poll() -> None:
    with ScriptedServer([Answer(["late"], delays_s=50)]) as server:
        with server.program():
            variable = refine("x")
        assert variable.get() == "late"
        assert server.client.http_requests == 3  # a value after 50 s is read in two polls of 30


def test_time_stands_still_while_nobody_waits() -> None:
    with ScriptedServer(token_s=1) as server:
        begun_s = server.now_s
        with server.program():
            variable = refine("x")
        assert server.now_s == begun_s
        server.advance(100)
        assert server.now_s == begun_s + 100
        assert variable.done


class TestStreams:
    def test_pieces_come_as_they_are_made(self) -> None:
        with ScriptedServer([Answer(["one ", "two ", "three"], delays_s=[1, 2, 3])]) as server:
            with server.program():
                variable = refine("x")
            begun_s = server.now_s
            pieces = [(text, server.now_s - begun_s) for text in variable.stream()]
            assert pieces == [("one ", 1), ("two ", 3), ("three", pytest.approx(6))]
            assert list(variable.stream()) == ["one two three"]

    def test_leaving_early(self) -> None:
        with ScriptedServer([Answer(["one ", "two "], delays_s=1)]) as server:
            with server.program():
                variable = refine("x")
            for text in variable.stream():
                assert text == "one "
                break
            assert variable.get() == "one two "

    def test_a_retry_that_says_the_same_is_not_seen(self) -> None:
        first, second = Answer(["one ", "two "], delays_s=1, then=BROKEN), Answer(["one two three"], delays_s=1)
        with ScriptedServer([first, second]) as server:
            with server.program():
                variable = refine("x")
            assert "".join(variable.stream()) == "one two three"

    def test_a_retry_that_says_otherwise_is_an_error_or_a_callback(self) -> None:
        def script() -> list[Any]:
            return [Answer(["one ", "two "], delays_s=1, then=BROKEN), Answer(["other"], delays_s=1)]

        with ScriptedServer(script()) as server:
            with server.program():
                variable = refine("x")
            seen: list[str] = []
            with pytest.raises(StreamReset, match="'refine-0'"):
                seen.extend(variable.stream())
            assert seen == ["one ", "two "]
            assert variable.get() == "other"
        with ScriptedServer(script()) as server:
            with server.program():
                variable = refine("x")
            seen = []
            for text in variable.stream(on_reset=seen.clear):
                seen.append(text)
            assert seen == ["other"]

    def test_a_list_variable_streams_as_json(self) -> None:
        with ScriptedServer(['["a", "b"]']) as server:
            with server.program():
                variable = refine("x").items()
            assert json.loads("".join(variable.stream())) == ["a", "b"]


class TestAsyncio:
    def test_the_same_in_async_code(self) -> None:
        async def main(server: ScriptedServer) -> str:
            async with server.program("book") as program:
                answer = combine(summarize.map(["one", "two"]))
            assert program.id is not None
            text = await answer
            assert text == await answer.aget(timeout_s=1)
            assert [text async for text in answer.stream()] == [text]
            return text

        with ScriptedServer() as server:
            assert asyncio.run(main(server)) == asyncio.run(main(server))

    def test_tasks_are_in_blocks_of_their_own(self) -> None:
        async def task(server: ScriptedServer, number: int) -> tuple[Program, Variable[str]]:
            async with server.program(f"p{number}") as program:
                first = refine(f"{number}")
                await asyncio.sleep(0)
                await first
                second = refine(first, step=number)
                assert second.program is first.program is program
            return program, second

        async def main(server: ScriptedServer) -> None:
            results = await asyncio.gather(*(task(server, number) for number in range(20)))
            assert len({program.id for program, _ in results}) == 20

        with ScriptedServer() as server:
            asyncio.run(main(server))

    def test_cancelling_a_wait_leaves_the_program_alone(self) -> None:
        async def main(server: ScriptedServer) -> str:
            async with server.program():
                variable = refine("x")
                waiting = asyncio.ensure_future(variable.aget())
                await asyncio.sleep(0)  # it has begun, and cannot have ended
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                return await variable

        with ScriptedServer(["fine"]) as server:
            assert asyncio.run(main(server)) == "fine"

    def test_cancelling_the_block_cancels_the_program(self) -> None:
        async def block(server: ScriptedServer, sent: asyncio.Queue[Program]) -> None:
            async with server.program() as program:
                variable = refine("x")
                assert not await asyncio.to_thread(lambda: variable.done)
                await sent.put(program)
                await asyncio.Event().wait()

        async def main(server: ScriptedServer) -> Program:
            sent: asyncio.Queue[Program] = asyncio.Queue()
            task = asyncio.ensure_future(block(server, sent))
            program = await sent.get()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return program

        with ScriptedServer([Answer(then="hang")]) as server:
            assert asyncio.run(main(server)).info().state == "cancelled"

    def test_an_async_generator_may_hold_a_block(self) -> None:
        """Closed from another context, it leaves that context's program alone."""
        closed_in: list[str] = []

        async def texts(server: ScriptedServer) -> AsyncGenerator[Any, None]:
            async with server.program():
                yield await refine("x")
                yield "never"

        async def close(server: ScriptedServer, generator: AsyncGenerator[Any, None]) -> None:
            async with server.program("mine") as mine:
                await generator.aclose()
                refine("y")
            closed_in.extend(node.id for node in mine.graph().nodes)

        async def main(server: ScriptedServer) -> None:
            generator = texts(server)
            await anext(generator)
            await asyncio.create_task(close(server, generator))

        with ScriptedServer() as server:
            asyncio.run(main(server))
        assert closed_in == ["refine-0"], "the call went to another program than that of its block"


class TestWishes:
    def test_criteria_and_the_rest_reach_the_server(self) -> None:
        with ScriptedServer(token_s=1) as server:
            with server.program("p", priority=2, deadline_s=100, budget={"total_tokens": 10_000}) as program:
                one, two = refine("x"), refine("y")
                program.update(criteria={one: "throughput", two: "latency"}, priority=3)
                assert server.client.http_requests == 0
            graph = {node.call: node for node in program.graph().nodes}
            assert graph[one.call].objective == "batch"
            assert graph[two.call].objective == "expedite"
            program.update(criteria={one: "latency", two: 50}, deadline_s=60)
            graph = {node.call: node for node in program.graph().nodes}
            assert graph[one.call].objective == "expedite"
            assert (program.priority, program.deadline_s, program.budget) == (3, 60, {"total_tokens": 10_000})

    def test_a_criterion_for_a_call_that_was_not_sent_yet(self) -> None:
        with ScriptedServer() as server, server.program() as program:
            refine("x").get()
            late = refine("y")
            program.update(criteria={late: "latency"})
            assert late.get()

    def test_wishes_that_are_refused(self) -> None:
        with ScriptedServer() as server:
            with pytest.raises(RequestRefused, match="priority"), server.program(priority=0):
                refine("x")
            with server.program() as program:
                refine("x").get()
                with pytest.raises(RequestRefused, match="total_token"):
                    program.update(budget={"total_token": 1})

    def test_fail_fast(self) -> None:
        with ScriptedServer([Answer(then=FATAL), Answer(["slow"], delays_s=50)]) as server:
            with server.program(failure="fail_fast") as program:
                refine("x")
                other = refine("y")
            with pytest.raises(CallFailed):
                other.get()
            assert program.info().state in ("failed", "cancelled")


class TestViews:
    def test_graph_and_explain(self) -> None:
        with ScriptedServer() as server:
            with server.program() as program:
                answer = combine(summarize.map(["one", "two"]))
            answer.get()
            graph = program.graph()
            assert [node.id for node in graph.nodes] == ["summarize-0", "summarize-1", "combine-0"]
            assert {(edge.source, edge.target) for edge in graph.edges} == {
                ("summarize-0", "combine-0"),
                ("summarize-1", "combine-0"),
            }
            lines = program.explain().splitlines()
            assert len(lines) == 3
            assert lines[0].startswith("summarize-0  done")
            assert len(lines[0].split("  ")[-1]) > 10

    def test_usage_and_timing(self) -> None:
        with ScriptedServer(token_s=1, max_running=1) as server:
            with server.program():
                first, second = refine("x"), refine("y")
            second.get()
            first.get()
            later = max(first, second, key=lambda v: v.timing.started_s if v.timing and v.timing.started_s else 0)
            assert later.usage is not None
            assert later.usage.output_tokens == 12
            assert later.timing is not None
            assert later.timing.queue_s == pytest.approx(12, abs=1)
            assert later.timing.wall_s == pytest.approx(24, abs=1)

    def test_a_trace_is_written(self, tmp_path: Path) -> None:
        with ScriptedServer() as server:
            with server.program() as program:
                answer = refine("x")
            answer.get()
            program.save_trace(tmp_path / "trace.json")
            trace = json.loads((tmp_path / "trace.json").read_text())
            assert any("refine-0" in str(event) for event in trace["traceEvents"])

    def test_views_of_a_program_that_was_not_sent(self) -> None:
        with ScriptedServer() as server, server.program() as program:
            refine("x")
            assert len(program.graph().nodes) == 1  # looking sends what is there


def test_deep_and_wide_graphs() -> None:
    with ScriptedServer(lambda request: "v") as server:
        with server.program():
            draft: Any = refine("x")
            for _ in range(800):
                draft = refine(draft)
            wide = combine(summarize.map([str(i) for i in range(800)]))
        assert server.client.http_requests == 1
        assert draft.get() == wide.get() == "v"


def test_everything_repeats_exactly() -> None:
    def run() -> tuple[list[str], float]:
        with ScriptedServer(token_s=0.5, max_running=3) as server:
            with server.program():
                answer = combine(summarize.map([f"{i}" for i in range(10)]))
            answer.get()
            return server.engine.prompts, server.now_s

    assert run() == run()


class TestRequests:
    def test_a_wish_beside_the_first_request_is_not_lost(self) -> None:
        async def both(program: Program) -> None:
            sending = asyncio.ensure_future(program.submission.send())
            for _ in range(2):
                await asyncio.sleep(0)
            assert program.submission._sending.locked(), "the first request is not on its way"
            await program.submission.patch({"priority": 5.0})
            await sending

        with ScriptedServer() as server, server.program() as program:
            refine("x")
            server.client.connection.run(both(program))
            assert program.submission.id is not None
            assert server._runtime.scheduler.program(program.submission.id).priority == 5.0

    def test_looking_at_a_program_that_had_no_calls_leaves_none_open(self) -> None:
        with ScriptedServer() as server:
            with server.program() as program:
                pass
            assert program.info().state == "done"

    def test_a_wish_that_makes_no_sense_is_refused(self) -> None:
        with ScriptedServer() as server, server.program() as program:
            refine("x")
            program.info()
            with pytest.raises(RequestRefused, match="priority"):
                program.update(priority=0)


class TestCancelled:
    def test_what_was_added_after_the_first_request_is_cancelled_too(self) -> None:
        with ScriptedServer() as server:
            with server.program() as program:
                first = refine("x")
                first.get()
                second = refine(first)
                program.cancel()
            with pytest.raises(CallCancelled):
                second.get()
            assert isinstance(first.get(), str)

    def test_a_number_that_json_cannot_say_is_an_error_of_the_program(self) -> None:
        with ScriptedServer() as server:
            program = server.program(priority=float("inf"))
            with pytest.raises(ProgramError, match="priority"), program:
                refine("x").get()
