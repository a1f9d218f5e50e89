"""What befalls an engine on the wire, and what becomes of the call: for each adapter that speaks HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from email.utils import format_datetime, formatdate

import pytest

from parrot_server.engines.base import Done, Engine, GenerateEvent, Request, Text
from parrot_server.engines.fake import FakeEngine
from parrot_server.engines.fake_http import FakeServer, FlavourName
from parrot_server.engines.fake_http_wire import Wire
from parrot_server.engines.fake_script import Answer
from parrot_server.engines.http import EngineHTTP, Patience
from parrot_server.engines.http_errors import retry_after_s
from parrot_server.engines.openai import OpenAIEngine
from parrot_server.engines.sglang import SGLangEngine
from parrot_server.errors import EngineError, Fault, SetupError
from tests.engines.contract import CANARY, ask, request, until
from tests.engines.tiny import tiny_tokenizer

pytestmark = pytest.mark.anyio
HASTY = Patience(connect_s=1.0, first_token_s=0.4, idle_s=0.2, answer_s=1.0)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def adapter(flavour: FlavourName, patience: Patience | None = None) -> AsyncIterator[tuple[FakeServer, Engine]]:
    """An adapter that was started, and the server that it speaks to; `sglang` is SGLang's own API."""
    async with FakeServer(flavour, engine=FakeEngine(token_s=0.001)) as server:
        engine: Engine = OpenAIEngine("engine", server.url, patience=patience)
        if flavour == "sglang":
            engine = SGLangEngine("engine", server.url, tokenizer=tiny_tokenizer(), patience=patience)
        await engine.start()
        try:
            yield server, engine
        finally:
            await engine.close()


async def run(engine: Engine, call: Request | None = None) -> tuple[str, Done]:
    events: list[GenerateEvent] = []
    async with asyncio.timeout(10), aclosing(engine.generate(call or request(ask("a bird")))) as stream:
        async for event in stream:
            events.append(event)
    assert isinstance(events[-1], Done)
    return "".join(event.text for event in events if isinstance(event, Text)), events[-1]


async def fail(engine: Engine, call: Request | None = None) -> EngineError:
    with pytest.raises(EngineError) as caught:
        await run(engine, call)
    return caught.value


FLAVOURS: list[FlavourName] = ["openai", "vllm", "llama.cpp", "sglang"]
ECHO = f'{{"error": {{"message": "bad: {CANARY}", "type": "some_error", "code": "some code {CANARY}"}}}}'


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize(
    ("status", "fault", "type"),
    [
        (400, Fault.CALL, "engine_refused"),
        (404, Fault.CALL, "engine_refused"),
        (413, Fault.CALL, "engine_refused"),
        (422, Fault.CALL, "engine_refused"),
        (307, Fault.ENGINE, "engine_moved"),
        (401, Fault.ENGINE, "engine_unauthorized"),
        (403, Fault.ENGINE, "engine_unauthorized"),
        (408, Fault.TIMEOUT, "engine_timeout"),
        (429, Fault.BUSY, "engine_busy"),
        (503, Fault.BUSY, "engine_busy"),
        (500, Fault.ENGINE, "engine_failed"),
        (502, Fault.ENGINE, "engine_failed"),
        (504, Fault.TIMEOUT, "engine_timeout"),
    ],
)
async def test_a_status_says_whose_fault_it_is(flavour: FlavourName, status: int, fault: Fault, type: str) -> None:
    async with adapter(flavour) as (server, engine):
        server.wires = [Wire(status=status, headers=(("retry-after", "7"),), body=ECHO)] * 4
        error = await fail(engine, request(ask(CANARY)))
        server.wires = []
        assert (error.fault, error.type) == (fault, type)
        assert error.retry_after_s == (7.0 if fault is Fault.BUSY else None)
        assert str(status) in error.message
        assert CANARY not in error.message
        assert (await run(engine))[0]


@pytest.mark.parametrize("body", ["", "<html>nginx</html>", "[1, 2]", '"text"', '{"error": "a string"}', "{" * 100_000])
async def test_an_error_of_any_shape_is_an_error(body: str) -> None:
    async with adapter("openai") as (server, engine):
        server.wires = [Wire(status=500, body=body)]
        assert (await fail(engine)).fault is Fault.ENGINE


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize(
    ("break_off", "fault"),
    [
        ("cut", Fault.ENGINE),
        ("malformed", Fault.ENGINE),
        ("error_event", Fault.ENGINE),
        ("no_done", Fault.ENGINE),
        ("no_finish", Fault.ENGINE),
        ("stall", Fault.TIMEOUT),
    ],
)
async def test_a_stream_without_its_end_is_no_answer(flavour: FlavourName, break_off: str, fault: Fault) -> None:
    async with adapter(flavour, HASTY) as (server, engine):
        server.wires = [Wire(fault=break_off)]  # type: ignore[arg-type]
        error = await fail(engine)
        assert error.fault is fault
        assert CANARY not in error.message
        assert (await run(engine))[0]

        async def nothing_runs() -> bool:
            return (await server.engine.load()).running == 0

        await until(nothing_runs, 2)


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_an_engine_that_takes_a_call_and_never_answers_is_given_up(flavour: FlavourName) -> None:
    async with adapter(flavour, HASTY) as (server, engine):
        server.engine.script = [Answer("", then="hang")]
        assert (await fail(engine)).fault is Fault.TIMEOUT

        async def nothing_runs() -> bool:
            return (await server.engine.load()).running == 0

        await until(nothing_runs, 2)


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("split_bytes", [1, 2, 7])
async def test_writes_may_be_cut_anywhere(flavour: FlavourName, split_bytes: int) -> None:
    async with adapter(flavour) as (server, engine):
        said = ["Grüße", " 🦜", "\u2028", "日本", '"}\n\ndata: [DONE]\n\n', "\r\n", "\\u0000 end"]
        server.engine.script = [Answer(said)]
        server.wires = [Wire(split_bytes=split_bytes)]
        text, done = await run(engine)
        assert text == "".join(said)
        assert done.finish == "stop"


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_streams_that_were_left_or_failed_use_up_no_connections(flavour: FlavourName) -> None:
    async with adapter(flavour) as (server, engine):
        for at in range(50):
            server.wires = [Wire(status=400, body="{}")] * 4 if at % 2 else []
            stream = engine.generate(request(ask(str(at)), max_tokens=100, ignore_eos=True))
            if at % 2:
                with pytest.raises(EngineError, match="refused"):
                    await asyncio.wait_for(anext(stream), 5)
            else:
                await asyncio.wait_for(anext(stream), 5)
            await stream.aclose()
        server.wires = []
        assert (await run(engine))[0]

        async def nothing_runs() -> bool:
            return (await server.engine.load()).running == 0

        await until(nothing_runs, 2)


async def test_a_connection_that_was_dropped_while_idle_is_replaced() -> None:
    """As llama.cpp does now and then: it says keep-alive, and ends the connection when the next request comes."""
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
    served = 0

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        await reader.readuntil(b"\r\n\r\n")
        served += 1
        writer.write(answer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve_one, "127.0.0.1", 0)
    http = EngineHTTP("engine", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", None, HASTY)
    for _ in range(3):
        await http.get_text("/v1/models")
    assert served == 3
    server.close()
    with pytest.raises(EngineError) as caught:
        await http.get_text("/v1/models")
    assert caught.value.type == "engine_gone"
    await http.close()


async def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for engine in (OpenAIEngine("a", f"http://127.0.0.1:{port}"), SGLangEngine("b", f"http://127.0.0.1:{port}")):
        with pytest.raises(EngineError) as caught:
            await engine.start()
        assert (caught.value.fault, caught.value.type) == (Fault.ENGINE, "engine_gone")
        assert str(port) in caught.value.message
        await engine.close()


async def test_a_listener_that_never_speaks() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        for engine in (OpenAIEngine("a", url, patience=HASTY), SGLangEngine("b", url, patience=HASTY)):
            with pytest.raises(EngineError) as caught:
                await engine.start()
            assert caught.value.fault is Fault.TIMEOUT
            await engine.close()


@pytest.mark.skipif(sys.platform != "linux", reason="others take connections beyond a listener's backlog")
async def test_a_connection_that_nobody_takes_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, contextlib.ExitStack() as queued:
        for _ in range(3):  # more than the backlog holds, so the next one is not even shaken hands with
            one = queued.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        port = listener.getsockname()[1]
        engine = OpenAIEngine("engine", f"http://127.0.0.1:{port}", patience=Patience(connect_s=0.2, answer_s=5.0))
        with pytest.raises(EngineError, match=r"takes no connection"):
            await engine.start()
        await engine.close()


async def test_a_server_of_another_kind_is_named() -> None:
    async with FakeServer("openai") as server:
        engine = SGLangEngine("b", server.url)
        with pytest.raises(EngineError, match="SGLang"):
            await engine.start()
        await engine.close()


@pytest.mark.parametrize("url", ["", "127.0.0.1:80", "ftp://host", "http://"])
def test_what_is_no_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(SetupError, match="http"):
        OpenAIEngine("a", url)


async def test_a_key_is_sent_and_asked_for() -> None:
    async with FakeServer("vllm", api_key="secret-key") as server:
        engine = OpenAIEngine("a", server.url + "/v1/", api_key="secret-key")
        await engine.start()
        assert (await run(engine))[0]
        await engine.close()
        keyless = OpenAIEngine("a", server.url)
        with pytest.raises(EngineError, match="key") as caught:
            await keyless.start()
        assert caught.value.type == "engine_unauthorized"
        await keyless.close()


def test_retry_after() -> None:
    assert retry_after_s({}) is None
    assert retry_after_s({"retry-after": "1.5"}) == 1.5
    assert retry_after_s({"retry-after": "soon"}) is None
    assert retry_after_s({"retry-after": formatdate(0, usegmt=True)}) == 0.0
    from datetime import UTC, datetime, timedelta

    later = datetime.now(UTC) + timedelta(seconds=30)
    assert retry_after_s({"retry-after": format_datetime(later, usegmt=True)}) == pytest.approx(30, abs=2)
