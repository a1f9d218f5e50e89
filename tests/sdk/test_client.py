"""Clients against a real server over sockets: broken networks, threads, event loops, and how all of it ends."""

from __future__ import annotations

import asyncio
import http.server
import json
import signal
import socket
import threading
import time
import traceback
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import httpx
import pytest

from parrot_sdk import Client, Program, ProgramError, RequestRefused, ServerGone
from parrot_sdk.client import default_client
from parrot_sdk.template import Input, Output, Role, Text
from parrot_server.engines.fake import FakeEngine
from parrot_server.engines.fake_script import Answer
from tests.sdk.functions import combine, headline, refine, summarize
from tests.sdk.proxy import breaking, byte_by_byte, plainly, proxy
from tests.serving import Server, echo, program, serving, until

EMOJI = "Grüße 🦜🌍 \u2028 中文\r\nnew line, {{x}} "


def client_threads() -> int:
    return sum(thread.name in ("parrot-client", "parrot-server") for thread in threading.enumerate())


def test_map_reduce_over_sockets() -> None:
    with serving() as server, Client(server.url) as client:
        with Program("book", client=client):
            answer = combine(summarize.map([f"chapter {i}" for i in range(16)]))
        assert answer.get(timeout_s=20)
        assert client.http_requests == 2
        assert len(server.engine.requests) == 17


def test_the_server_reads_a_template_as_the_sdk_does() -> None:
    def shown(segment: Any) -> dict[str, str]:
        match segment:
            case Text(text):
                return {"text": text}
            case Input(name):
                return {"input": name}
            case Output(name):
                return {"output": name}
            case Role(role):
                return {"role": role}
        raise AssertionError(segment)

    with serving() as server:
        for function in (summarize, combine, refine, headline):
            body = function.declaration.body.model_dump(by_alias=True, exclude_none=True)
            reply = server.http.post(
                "/v1/functions", params={"dry_run": True}, json={"name": function.name, **body}
            ).json()
            assert reply["segments"] == [shown(segment) for segment in function.template.segments]
            assert reply["id"] == function.declaration.body.id


class TestNetworks:
    def test_answers_cut_into_single_bytes(self) -> None:
        engine = FakeEngine(script=[Answer([text.encode() for text in EMOJI])])
        with serving(engine) as server, proxy(server.url, byte_by_byte) as url, Client(url) as client:
            with client.program():
                variable = refine("x")
            assert "".join(variable.stream()) == EMOJI
            assert variable.get() == EMOJI

    def test_a_submit_whose_answer_is_lost_is_not_done_twice(self) -> None:
        with serving() as server, proxy(server.url, breaking({0, 1}, after_bytes=20)) as url, Client(url) as client:
            with client.program("once"):
                variable = refine("x")
            assert variable.get(timeout_s=20)
            programs = server.http.get("/v1/programs").json()["programs"]
            assert [each["name"] for each in programs] == ["once"]
            assert len(server.engine.requests) == 1
            assert client.http_requests == 4

    @pytest.mark.parametrize("after_bytes", [0, 20, 300, 420, 500, 700])
    def test_a_broken_stream_goes_on_where_it_was(self, after_bytes: int) -> None:
        text = [f"word {i} " for i in range(40)]
        engine = FakeEngine(script=[Answer(text, delays_s=0.002)])
        broken = breaking({1, 2, 3}, after_bytes)  # the first connection is that of the submit
        with serving(engine) as server, proxy(server.url, broken) as url, Client(url) as client:
            with client.program():
                variable = refine("x")
            assert "".join(variable.stream()) == "".join(text)
            assert client.http_requests == 5

    def test_nobody_answers(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        with Client(f"http://127.0.0.1:{port}", retry_s=0.3) as client:
            begun_s = time.monotonic()
            with (
                pytest.raises(ServerGone, match=rf"no server answers at http://127.0.0.1:{port}: start one") as caught,
                client.program(),
            ):
                refine("x")
            shown = "".join(traceback.format_exception(caught.value))
            assert "httpx" not in shown
            assert shown.count("Traceback") == 1
            assert time.monotonic() - begun_s < 5
            assert client.http_requests > 1

    def test_one_who_never_answered_is_given_up_sooner(self) -> None:
        refused, broken = httpx.ConnectError("refused"), httpx.ReadError("broken")
        with serving() as server, Client(server.url) as client:
            assert client.connection._limit_s(refused) < client.connection._limit_s(broken)
            client.submit(program(echo("a", "x", "o")))
            assert client.connection._limit_s(refused) == client.connection._limit_s(broken)

    def test_a_server_that_accepts_and_says_nothing(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            client = Client(url, timeout_s=0.2, retry_s=0.3)
            with client, pytest.raises(ServerGone, match="ReadTimeout"), client.program():
                refine("x")

    def test_a_server_that_comes_back(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        with (
            serving() as server,
            Client(f"http://127.0.0.1:{port}", retry_s=20) as client,
            ThreadPoolExecutor(1) as pool,
        ):
            sending = pool.submit(client.submit, program(echo("a", "x", "o")), 5)
            until(lambda: client.http_requests > 2, "a few tries")
            with proxy(server.url, plainly, port):
                assert sending.result(20).values

    def test_a_server_that_stops_in_the_middle_of_a_stream_is_gone_at_once(self) -> None:
        engine = FakeEngine(script=lambda request: Answer(["x"], then="hang"))
        with serving(engine) as server, Client(server.url) as client:
            with client.program():
                pieces = iter(refine("x").stream())
                assert next(pieces) == "x"
            server.loop.call_soon_threadsafe(server.stop.set)
            with pytest.raises(ServerGone, match="shutting down"):
                next(pieces)

    def test_a_stream_whose_server_pings(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("parrot_server.api.sse.PING_S", 0.01)
        answer = Answer(["word "] * 20, delays_s=0.03)
        with serving(FakeEngine(script=[answer])) as server, Client(server.url) as client:
            with client.program():
                variable = refine("x")
            assert "".join(variable.stream()) == "word " * 20
            assert client.http_requests == 2

    def test_a_server_that_asks_for_patience(self) -> None:
        reply = {"id": "p-1", "state": "open", "variables": [], "links": {}}
        answers = [(503, {}, "0.05"), (429, {}, "0.05"), (201, reply, "")]
        with foreign_server(answers) as url, Client(url) as client:
            assert client.submit({}).id == "p-1"
            assert client.http_requests == 3

    def test_patience_ends(self) -> None:
        busy = {"type": "busy", "title": "Busy", "status": 503, "detail": "come back later"}
        with foreign_server([(503, busy, "")]) as url, Client(url, retry_s=0.3) as client:
            with pytest.raises(RequestRefused, match="come back later") as caught:
                client.submit({})
            assert (caught.value.type, caught.value.status) == ("busy", 503)

    @pytest.mark.parametrize(("status", "error"), [(200, ServerGone), (404, RequestRefused), (302, RequestRefused)])
    def test_a_server_that_is_none_of_ours(self, status: int, error: type[Exception]) -> None:
        message = r"none of a Parrot server|without saying why"
        with (
            foreign_server([(status, "<html>", "")]) as url,
            Client(url) as client,
            pytest.raises(error, match=message),
        ):
            client.submit({})

    def test_an_address_that_is_none(self) -> None:
        with pytest.raises(ProgramError, match="write http://host:port"):
            Client("127.0.0.1:8000")


@contextmanager
def foreign_server(answers: list[tuple[int, Any, str]]) -> Iterator[str]:
    """A server that gives these answers (status, JSON, Retry-After) in turn, and the last one for ever."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", "0")))
            status, body, retry_after = answers.pop(0) if len(answers) > 1 else answers[0]
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            if retry_after:
                self.send_header("retry-after", retry_after)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class TestLeaving:
    def test_ctrl_c_while_a_stream_is_read(self) -> None:
        def read(texts: Iterator[str]) -> None:
            next(texts)
            threading.Timer(0.01, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()
            next(texts)

        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        with hanging_server() as server, Client(server.url) as client:
            for number in range(1, 21):
                with client.program() as mine:
                    variable = refine("x")
                with pytest.raises(KeyboardInterrupt):
                    read(iter(variable.stream()))
                mine.cancel()
                assert len(server.engine.requests) == number
        signal.signal(signal.SIGINT, before)

    def test_a_time_out_while_a_stream_is_read(self) -> None:
        async def read(texts: AsyncIterator[str]) -> None:
            async with asyncio.timeout(0.02):
                async for _ in texts:
                    pass

        async def main(client: Client) -> None:
            for _ in range(20):
                async with client.program() as mine:
                    variable = refine("x")
                with pytest.raises(TimeoutError):
                    await read(aiter(variable.stream()))
                await client.connection.hand_over(mine.submission.cancel())

        with hanging_server() as server, Client(server.url) as client:
            asyncio.run(main(client))


def hanging_server() -> AbstractContextManager[Server]:
    """A server whose engine says one word, and no more."""
    return serving(FakeEngine(script=lambda request: Answer(["x"], then="hang")))


class TestThreadsAndLoops:
    def test_one_client_in_two_event_loops(self) -> None:
        async def main(client: Client) -> str:
            async with client.program():
                variable = refine("x")
            return "".join([text async for text in variable.stream()]) + await variable

        with serving() as server, Client(server.url) as client:
            assert asyncio.run(main(client)) == asyncio.run(main(client))

    def test_an_async_client(self) -> None:
        async def main(url: str) -> str:
            async with Client(url) as client, client.program():
                return await refine("x")

        with serving() as server:
            assert asyncio.run(main(server.url))
        until(lambda: client_threads() == 0, "the end of the client's thread")

    def test_threads_and_tasks_each_have_their_own_client_and_program(self) -> None:
        """64 threads and 64 tasks on two servers: every value comes from the server that was meant."""
        engines = [FakeEngine(script=lambda request: "red"), FakeEngine(script=lambda request: "blue")]
        with serving(engines[0]) as red, serving(engines[1]) as blue:
            urls = {"red": red.url, "blue": blue.url}
            barrier = threading.Barrier(32)

            def thread(number: int) -> bool:
                colour = ("red", "blue")[number % 2]
                with Client(urls[colour]) as client, client.program(f"t{number}") as mine:
                    barrier.wait(30)
                    first = refine(str(number))
                    second = refine(first, step=number)
                    return second.get(20) == colour and second.program is mine

            async def task(client: Client, number: int, colour: str) -> bool:
                async with client.program(f"a{number}") as mine:
                    first = refine(str(number))
                    await asyncio.sleep(0)
                    second = refine(first, step=number)
                    return await second == colour and second.program is mine

            async def tasks() -> list[bool]:
                async with Client(red.url) as one, Client(blue.url) as two:
                    clients = [(one, "red"), (two, "blue")]
                    return await asyncio.gather(*(task(clients[n % 2][0], n, clients[n % 2][1]) for n in range(64)))

            with ThreadPoolExecutor(32) as pool:
                results = [pool.submit(thread, number) for number in range(64)]
                assert all(asyncio.run(tasks()))
                assert all(result.result(60) for result in results)
            assert len(engines[0].requests) == len(engines[1].requests) == 128

    def test_many_waits_at_once(self) -> None:
        async def main(client: Client) -> list[str]:
            async with client.program():
                variables = summarize.map([str(number) for number in range(300)])
                return await asyncio.gather(*variables)

        with serving(FakeEngine(script=lambda request: "v", token_s=0.001)) as server, Client(server.url) as client:
            assert asyncio.run(main(client)) == ["v"] * 300

    def test_what_is_quick_does_not_wait_behind_what_is_long(self) -> None:
        with serving(FakeEngine(script=lambda request: Answer(then="hang"))) as server, Client(server.url) as client:
            with client.program() as mine:
                variables = summarize.map([str(number) for number in range(250)])
            with ThreadPoolExecutor(250) as pool:
                waits = [pool.submit(variable.get, 60) for variable in variables]
                until(lambda: client.http_requests > 190, "the waits")
                begun_s = time.monotonic()
                mine.cancel()
                assert time.monotonic() - begun_s < 5
                for wait in waits:
                    assert wait.exception(30) is not None


class TestEnds:
    def test_closing_ends_what_waits(self) -> None:
        with serving(FakeEngine(script=[Answer(then="hang")])) as server:
            client = Client(server.url)
            with client.program():
                variable = refine("x")
            with ThreadPoolExecutor(2) as pool:
                reading = pool.submit(variable.get)
                streaming = pool.submit(lambda: list(variable.stream()))
                until(lambda: client.http_requests == 3, "the two reads")
                client.close()
                client.close()
                for waiting in (reading, streaming):
                    assert isinstance(waiting.exception(5), ProgramError)
            with pytest.raises(ProgramError, match="the client is closed"):
                variable.get()
            with pytest.raises(ProgramError, match="the client is closed"), client.program():
                refine("x")
        until(lambda: client_threads() == 0, "the end of the client's thread")

    def test_closing_ends_what_is_awaited(self) -> None:
        async def main(client: Client) -> None:
            async with client.program():
                variable = refine("x")
            waiting = asyncio.ensure_future(variable.aget())
            while client.http_requests < 2:  # noqa: ASYNC110 - counted in another thread
                await asyncio.sleep(0.005)
            client.close()
            with pytest.raises(ProgramError):
                await waiting

        with serving(FakeEngine(script=[Answer(then="hang")])) as server:
            asyncio.run(main(Client(server.url)))

    def test_a_client_that_is_forgotten_frees_its_thread(self) -> None:
        def use(url: str) -> str:
            return Client(url).submit({}).state

        with serving() as server:
            assert use(server.url) == "open"
            until(lambda: client_threads() == 0, "the end of the client's thread")

    def test_a_stream_that_is_left_frees_its_connection(self) -> None:
        engine = FakeEngine(script=lambda request: Answer(["a ", "b "] * 50, delays_s=0.01))
        with serving(engine) as server, Client(server.url) as client:
            for _ in range(20):
                with client.program():
                    variable = refine("x")
                for _ in variable.stream():
                    break
            assert until(lambda: not any("_send_events" in name for name in server.tasks()), "the end of all streams")


class TestKeys:
    def test_a_key_is_sent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with serving(api_keys={"secret": "tenant"}) as server:
            monkeypatch.setenv("PARROT_URL", server.url)
            with Client() as client, pytest.raises(RequestRefused, match="key") as caught:
                client.submit({})
            assert caught.value.status == 401
            with Client(api_key="secret") as client:
                assert client.submit({}).id
            monkeypatch.setenv("PARROT_API_KEY", "secret")
            with Client() as client:
                assert client.submit({}).id


class TestSubmit:
    def test_a_whole_body_with_its_values(self) -> None:
        with serving() as server, Client(server.url) as client:
            reply = client.submit(program(echo("a", "x", "o")), wait_s=10)
            assert reply.values is not None
            assert reply.values.keys() == {"o"}

    def test_a_body_that_is_refused_names_the_place(self) -> None:
        with serving() as server, Client(server.url) as client:
            with pytest.raises(RequestRefused) as caught:
                client.submit(program(echo("a", "x", "o", sampling={"y": {"max_tokens": 0}})))
            assert caught.value.at == "calls[0].sampling.y.max_tokens"
            with pytest.raises(RequestRefused) as caught:
                client.submit(program(echo("a", {"var": "nobody"}, "o")))
            assert (caught.value.type, caught.value.call) == ("unknown_variable", "a")


class TestLocal:
    def test_a_server_of_its_own(self) -> None:
        with Client.local(engine="fake") as client:
            with client.program():
                answer = combine(summarize.map(["one", "two"]))
            assert answer.get(timeout_s=20)
        until(lambda: client_threads() == 0, "the end of client and server")

    def test_a_server_that_cannot_start_says_why(self) -> None:
        with pytest.raises(ServerGone, match="did not start: no engine"):
            Client.local(engine="none")
        until(lambda: client_threads() == 0, "the end of client and server")

    def test_a_setting_that_is_none(self) -> None:
        with pytest.raises(ServerGone, match="calls_per_program"):
            Client.local(engine="fake", calls_per_program=0)

    def test_programs_without_a_client(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with serving() as server:
            monkeypatch.setenv("PARROT_URL", server.url)
            with Program("there"):
                variable = refine("x")
            assert variable.get(timeout_s=20)
            assert variable.program.client is default_client()
            assert len(server.engine.requests) == 1
            default_client().close()
        monkeypatch.delenv("PARROT_URL")
        monkeypatch.setenv("PARROT_ENGINE", "fake")
        with Program("here"):
            variable = refine("x")
        assert variable.get(timeout_s=20)
        default_client().close()
