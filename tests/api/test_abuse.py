"""Clients that mean harm, or have bad luck: odd requests in any order, at any moment, and the server stays as it should be."""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from parrot_server.engines.base import Request
from parrot_server.engines.fake import FakeEngine
from parrot_server.engines.fake_script import Answer
from parrot_server.errors import EngineError, Fault
from tests.serving import Server, echo, program, serving, until


def script(request: Request) -> Answer | None:
    text = "".join(piece.text for piece in request.prompt.pieces)
    if "SLOW" in text:
        return Answer("word " * 5000, delays_s=0.05)
    if "HALF" in text:
        return Answer(then=EngineError(Fault.CALL, "odd\ud800", "half a character: \ud800"))
    if "STALE" in text:
        return Answer("0123456789", delays_s=0.02, then=EngineError(Fault.CALL, "cut", "cut"))
    if "LATER" in text:
        return Answer("abcdefghijklmnopqrstuvwxyz", delays_s=0.1)
    return None


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(FakeEngine(script=script)) as running:
        yield running


def stream(server: Server, reply: dict[str, Any], cursor: str = "", name: str = "v") -> list[Any]:
    header = [f"Last-Event-ID: {cursor}"] if cursor else []
    return list(server.open(f"/v1/programs/{reply['id']}/variables/{name}/stream", *header).events())


def text_after(held: str, events: list[Any]) -> str:
    for event in events:
        if event.name == "reset":
            held = ""
        elif event.name == "delta":
            held = held[: event.data["offset"]] + event.data["text"]
    return held


def has_ended(server: Server, url: str) -> bool:
    return server.http.get(url).json()["state"] in ("done", "failed", "cancelled")


def has_started(server: Server, calls: int) -> bool:
    return len(server.engine.starts) >= calls


# ---- streams that are resumed


def test_who_read_a_loser_s_text_and_comes_back_reads_the_winner_s(server: Server) -> None:
    body = program(echo("a", "STALE", "v", race="r"), echo("b", "LATER", "v", race="r"))
    reply = server.submit(body)
    reader = server.open(f"/v1/programs/{reply['id']}/variables/v/stream")
    first = next(event for event in reader.events() if event.name == "delta")
    reader.leave()
    value = server.value(reply["id"], "v")
    assert text_after(first.data["text"], stream(server, reply, first.id)) == value


@pytest.mark.parametrize("length", [5, 10, 40])
def test_who_read_a_failed_text_and_comes_back_reads_what_was_fallen_back_on(server: Server, length: int) -> None:
    reply = server.submit(program(echo("a", "STALE", "v", fallback="F" * length)))
    reader = server.open(f"/v1/programs/{reply['id']}/variables/v/stream")
    events = [event for event in reader.events() if event.name == "delta"]
    value = server.value(reply["id"], "v")
    assert value == "F" * length
    held = ""
    for event in events:
        held = text_after(held, [event])
        assert text_after(held, stream(server, reply, event.id)) == value


@pytest.mark.parametrize(
    "cursor",
    ["0", "1:1:1", "-1:5", "1:-5", "999999999:999999999999", "9999999999:1", "1:99999999999999", "a:b", "١:٢"],
)
def test_a_cursor_of_another_stream_is_refused_or_reads_it_all(server: Server, cursor: str) -> None:
    reply = server.submit(program(echo("a", "go", "v")))
    value = server.value(reply["id"], "v")
    url = f"/v1/programs/{reply['id']}/variables/v/stream"
    response = server.http.get(url, headers=[(b"Last-Event-ID", cursor.encode())])
    assert response.status_code in (200, 422), response.text
    if response.status_code == 200:
        assert value in response.text


# ---- what programs are told after their end


def test_nothing_moves_after_the_end(server: Server) -> None:
    """Whatever clients still ask for, `/events` tells of no state after the last one."""
    reply = server.submit(program(echo("a", "SLOW", "v"), close=False))
    url = f"/v1/programs/{reply['id']}"
    assert server.http.delete(url).json()["state"] == "cancelled"
    for method, path, body in [
        ("POST", "/close", None),
        ("DELETE", "", None),
        ("POST", "/close", None),
        ("PATCH", "", {"priority": 2}),
        ("POST", "/calls", program(echo("b", "x", "w"), close=True)),
        ("PUT", "/variables/v", {"value": "x"}),
    ]:
        server.http.request(method, url + path, json=body)
    assert server.http.get(url).json()["state"] == "cancelled"
    states = [event.data["state"] for event in server.open(f"{url}/events").events() if event.name == "program"]
    assert states == ["open", "cancelled"]


def test_any_order_of_changes_leaves_a_sound_end(server: Server) -> None:
    chance = random.Random(7)
    for _ in range(40):
        reply = server.submit(
            program(echo("a", {"var": "x"}, "v"), echo("b", {"var": "v"}, "w"), variables={"x": None}, close=False)
        )
        url = f"/v1/programs/{reply['id']}"
        moves = [
            ("PUT", "/variables/x", {"value": "1"}),
            ("PUT", "/variables/x", {"value": "2"}),
            ("POST", "/close", None),
            ("DELETE", "", None),
            ("POST", "/calls", {"calls": [echo("c", {"var": "w"}, "z")]}),
            ("PATCH", "", {"budget": {"wall_s": 0.001}}),
            ("PATCH", "", {"deadline_s": 0.001}),
        ]
        chance.shuffle(moves)

        def move(what: tuple[str, str, Any], url: str = url) -> int:
            return server.http.request(what[0], url + what[1], json=what[2]).status_code

        with ThreadPoolExecutor(3) as pool:
            assert set(pool.map(move, moves)) <= {200, 201, 404, 409, 422}
        until(partial(has_ended, server, url))
        seen = [event for event in server.open(f"{url}/events").events() if event.name == "program"]
        assert [event.data["state"] for event in seen][-1] in ("done", "failed", "cancelled")
        assert sum(event.data["state"] not in ("open", "running") for event in seen) == 1


# ---- what engines and models say


def test_half_a_character_in_an_engine_s_error_is_told_whole(server: Server) -> None:
    reply = server.submit(program(echo("a", "HALF", "v")))
    response = server.http.get(f"/v1/programs/{reply['id']}/variables/v", params={"wait": 10})
    assert response.status_code == 424
    assert "half a character" in response.json()["detail"]
    assert stream(server, reply)[-1].name == "error"


def test_half_a_character_in_a_model_s_json_is_an_error(server: Server) -> None:
    field = {"id": "f", "transform": {"field": "a"}, "inputs": {"x": {"var": "doc"}}, "outputs": {"y": "v"}}
    reply = server.submit({"variables": {"doc": '{"a": "\\ud800"}'}, "calls": [field]}, wait=5)
    assert reply["errors"]["v"]["type"] == "transform_failed"
    assert stream(server, reply)[-1].name == "error"


# ---- numbers and headers


@pytest.mark.parametrize(
    "body",
    [
        {"priority": 1e-310},
        {"priority": 5e-324},
        {"deadline_s": 5e-324},
        {"budget": {"wall_s": 5e-324}},
        {"budget": {"total_tokens": 2**53}},
        {"criteria": {"v": {"deadline_s": 1e-300}}},
    ],
)
def test_extreme_numbers_are_refused_or_served(server: Server, body: dict[str, Any]) -> None:
    response = server.http.post("/v1/programs", json=program(echo("a", "go", "v")) | body, params={"wait": 10})
    assert response.status_code in (201, 422), response.text
    again = server.submit(program(echo("a", "go", "v")), wait=10)
    assert again["values"], "the server is not what it was"


QUERIES = [
    "wait=nan",
    "wait=inf",
    "wait=-1",
    "wait=1e400",
    "wait=",
    "wait=1&wait=2",
    "wait=0x1",
    "wait=%00",
    "x=1",
    "WAIT=1",
    "cancel_on_disconnect=maybe",
]


@pytest.mark.parametrize("query", QUERIES)
def test_queries_are_closed(server: Server, query: str) -> None:
    reply = server.submit(program(echo("a", "go", "v")))
    response = server.http.get(f"/v1/programs/{reply['id']}/variables/v?{query}")
    assert response.status_code in (200, 202, 422)
    if response.status_code == 422:
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["type"] in ("bad_value", "unknown_field", "limit_exceeded")


HEADERS = [
    "X-Request-Id",
    "Idempotency-Key",
    "Authorization",
    "Last-Event-ID",
    "Content-Type",
    "Accept",
    "Expect",
    "Transfer-Encoding",
    "Content-Length",
    "Host",
    "Connection",
]
ODD = [b"", b"\xff\xfe", b"x" * 4000, b"a\tb", b"0", b"-1", b"100-continue", b"chunked, gzip", b"\x01", b"%0d%0a"]


@pytest.mark.parametrize("header", HEADERS)
def test_odd_headers_are_no_fault_of_ours(server: Server, header: str, caplog: pytest.LogCaptureFixture) -> None:
    reply = server.submit(program(echo("a", "go", "v")))
    server.value(reply["id"], "v")
    for odd in ODD:
        for path in (b"/v1/programs", f"/v1/programs/{reply['id']}/events".encode()):
            head = path + b" HTTP/1.1\r\nConnection: close\r\n" + header.encode() + b": " + odd
            reader = server.send(b"GET " + head + b"\r\n\r\n")
            status = 0
            with suppress(AssertionError, ConnectionError):  # it may well be hung up on
                status = reader.status
            assert status != 500
            reader.leave()
    assert "incident" not in caplog.text
    assert server.http.get("/healthz").status_code == 200


# ---- keys


def test_a_key_used_by_many_at_once_is_one_program_and_every_other_body_is_refused(server: Server) -> None:
    bodies = [program(echo("a", f"go {number % 4}", "v")) for number in range(40)]

    def send(body: dict[str, Any]) -> Any:
        return server.http.post("/v1/programs", json=body, headers={"Idempotency-Key": "many"}, params={"wait": 5})

    with ThreadPoolExecutor(20) as pool:
        responses = list(pool.map(send, bodies))
    ids = {response.json()["id"] for response in responses if response.status_code == 201}
    assert len(ids) == 1
    assert {response.status_code for response in responses} == {201, 409}


def test_a_key_whose_first_request_is_left_while_it_is_sent_is_not_stuck(server: Server) -> None:
    content = json.dumps(program(echo("a", "go", "v"))).encode()
    head = b"POST /v1/programs HTTP/1.1\r\nHost: x\r\nIdempotency-Key: left\r\nContent-Length: %d\r\n\r\n" % len(
        content
    )
    for cut in (0, 1, len(content) // 2, len(content) - 1):
        server.send(head + content[:cut]).leave()
    response = server.http.post("/v1/programs", content=content, headers={"Idempotency-Key": "left"})
    assert response.status_code == 201


# ---- many programs


def test_programs_that_end_at_once_are_answered_however_few_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    """Submits, waits and lists are answered while programs come, end and are forgotten."""
    with serving(FakeEngine(), retained_programs=1) as server:

        def one(number: int) -> list[int]:
            wait = {"wait": 10} if number % 2 else {}
            body = program(echo("a", f"go {number}", "v")) if number % 3 else {"variables": {"x": "y"}, "close": True}
            statuses = [server.http.post("/v1/programs", json=body, params=wait).status_code]
            if number % 5 == 0:
                statuses.append(server.http.get("/v1/programs").status_code - 200 + 201)
            return statuses

        with ThreadPoolExecutor(24) as pool:
            statuses = [status for some in pool.map(one, range(400)) for status in some]
        assert set(statuses) == {201}
        server.submit({"close": True})  # with the next that ends they go
        assert len(server.http.get("/v1/programs").json()["programs"]) <= 2
    assert "incident" not in caplog.text


def test_all_who_wait_are_told_when_all_programs_end_at_once() -> None:
    engine = FakeEngine(script=lambda request: Answer("x" * 40, delays_s=30), max_running=64, kv_tokens=10**8)
    with serving(engine, retained_programs=5) as server:
        with ThreadPoolExecutor(40) as pool:
            body = program(echo("a", "go", "v", retry={"attempts": 1}))
            waits = [pool.submit(server.http.post, "/v1/programs", json=body, params={"wait": 30}) for _ in range(40)]
            until(lambda: len(engine.starts) == 40)
            server.loop.call_soon_threadsafe(engine.go_down)
            replies = [wait.result().json() for wait in waits]
        assert [reply.get("errors", reply) and reply["state"] for reply in replies] == ["failed"] * 40
        assert all(reply["errors"]["v"]["type"] == "engine_gone" for reply in replies)


# ---- registered functions


def test_names_of_functions_are_bounded_like_functions() -> None:
    with serving(FakeEngine(), functions=5) as server:
        function = {"template": "Say {{x}} {{y}}", "outputs": {"y": {}}}
        statuses = [
            server.http.post("/v1/functions", json=function | {"name": f"n{number}"}).status_code for number in range(9)
        ]
        assert statuses == [201] * 5 + [422] * 4
        assert server.http.post("/v1/functions", json=function | {"name": "n1"}).status_code == 200


def test_logs_are_quiet_about_clients(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(50):
        server.http.post("/v1/programs", content=b"{")
        server.http.get("/nowhere")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_fifty_at_once_pass_through_one_thread() -> None:
    """Large bodies are read in threads; nothing that waits may hold one of them."""
    with serving(FakeEngine(context_tokens=10**6, kv_tokens=10**8)) as server:
        server.loop.set_default_executor(ThreadPoolExecutor(1))
        body = program(echo("a", "x" * 50_000, "v"))
        with ThreadPoolExecutor(50) as pool:
            posts = [pool.submit(server.http.post, "/v1/programs", json=body, params={"wait": 20}) for _ in range(50)]
            assert {post.result().json()["state"] for post in posts} == {"done"}


def test_a_budget_of_seconds_ends_calls_that_an_engine_never_answers() -> None:
    engine = FakeEngine(script=lambda request: Answer("never", then="hang"))
    with serving(engine) as server:
        begun = time.monotonic()
        reply = server.submit(program(echo("a", "go", "v"), budget={"wall_s": 1.0}), wait=20)
        assert reply["errors"]["v"]["type"] == "budget_exceeded"
        assert 0.9 < time.monotonic() - begun < 5
        until(lambda: len(engine.aborts) == 1)


def test_what_an_engine_still_sends_of_an_aborted_call_is_neither_shown_nor_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving(FakeEngine(script=script, abort_s=0.5)) as server:
        for number in range(20):
            reply = server.submit(program(echo("a", "SLOW", "v")))
            until(partial(has_started, server, number + 1))
            server.http.delete(f"/v1/programs/{reply['id']}")
            assert stream(server, reply)[-1].name == "error"
        until(lambda: len(server.engine.aborts) == 20)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("path", ["?wait=5&cancel_on_disconnect=true", "/stream?cancel_on_disconnect=true"])
def test_who_sends_too_much_while_he_waits_has_not_left(path: str) -> None:
    with serving(FakeEngine(script=script), body_bytes=1000) as server:
        reply = server.submit(program(echo("a", "LATER", "v")))
        head = f"GET /v1/programs/{reply['id']}/variables/v{path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        reader = server.send(head.encode() + b"400\r\n" + b"x" * 1024 + b"\r\n")
        assert reader.status == (200 if "stream" in path else 413)
        assert server.value(reply["id"], "v").startswith("abc")
