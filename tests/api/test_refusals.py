"""What is wrong is answered in time, with the right status and a message that names the culprit; nothing is a 500."""

from __future__ import annotations

import asyncio
import copy
import http.client
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from parrot_server.api.app import create_app
from parrot_server.config import Settings
from parrot_server.engines.fake import FakeEngine
from parrot_server.runtime import Runtime
from tests.serving import Server, echo, function, program, serving, until

LIMITS = {"body_bytes": 1_000_000, "value_bytes": 10_000, "calls_per_program": 20, "depth": 10, "wait_s": 5}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(FakeEngine(), **LIMITS) as running:
        yield running
        assert not running.engine.requests, "something of a refused program ran"


def body(change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """A sound program with one thing changed."""
    sound = program(echo("a", "go", "v"), echo("b", {"var": "v"}, "w"), variables={"x": "text"})
    changed = copy.deepcopy(sound)
    change(changed)
    return changed


def at(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(data: Any) -> None:
        for step in path[:-1]:
            data = data[step]
        data[path[-1]] = value

    return change


def drop(*path: Any) -> Callable[[dict[str, Any]], None]:
    def change(data: Any) -> None:
        for step in path[:-1]:
            data = data[step]
        del data[path[-1]]

    return change


TEMPLATE = ("functions", "echo", "template")
TABLE = [
    # what is wrong, status, type, what the message names
    (drop("calls", 1, "inputs", "x"), 422, "missing_hole", "'x'"),
    (at("calls", 1, "inputs", "z", value="more"), 422, "unknown_hole", "'z'"),
    (at("calls", 1, "inputs", value={"z": "misspelt"}), 422, "unknown_hole", "'z'"),
    (drop("calls", 1, "outputs", "y"), 422, "missing_hole", "'y'"),
    (at("calls", 1, "outputs", value={"z": "misspelt"}), 422, "unknown_hole", "'z'"),
    (at("calls", 1, "outputs", "y", value="v"), 422, "bound_twice", "'v'"),
    (at("calls", 1, "outputs", "y", value="x"), 422, "bound_twice", "'x'"),
    (at("calls", 0, "inputs", "x", value={"var": "w"}), 422, "cycle", "a -> b -> a"),
    (at("calls", 0, "inputs", "x", value={"var": "nobody"}), 422, "unknown_variable", "'nobody'"),
    (at("calls", 1, "id", value="a"), 422, "duplicate_call", "'a'"),
    (at("calls", 1, "function", value="nothing"), 422, "unknown_function", "'nothing'"),
    (at("calls", 1, "after", value=["zz"]), 422, "unknown_call", "'zz'"),
    (at("criteria", value={"zz": "latency"}), 422, "unknown_variable", "'zz'"),
    (at("criteria", value={"v": "soon"}), 422, "bad_value", "criteria.v"),
    (at("functions", "echo", "outputs", "y", "max_tokens", value=0), 422, "bad_value", "max_tokens"),
    (at("functions", "echo", "outputs", "y", "n", value=3), 422, "unknown_field", "n: unknown field"),
    (
        at("calls", 1, "sampling", value={"y": {"max_tokens": 9, "logit_bias": {}}}),
        422,
        "unknown_field",
        "logit_bias: unknown field",
    ),
    (
        at("calls", 0, "inputs", "x", value=[{"var": "x", "default": "q"}]),
        422,
        "unknown_field",
        "default: unknown field",
    ),
    (at("surprise", value=1), 422, "unknown_field", "surprise: unknown field"),
    (at("calls", 0, "inputs", "x", value=None), 422, "bad_value", "calls[0].inputs.x"),
    (at("calls", 0, "inputs", "x", value={"a": 1}), 422, "bad_value", "calls[0].inputs.x"),
    (at("variables", "x", value=7), 422, "bad_value", "variables.x"),
    (at("calls", 0, "tool", value="t"), 422, "bad_value", "exactly one of function, tool and transform"),
    (at("calls", 0, "timeout_s", value=-1), 422, "bad_value", "timeout_s"),
    (at("calls", 0, "id", value="x" * 129), 422, "bad_value", "calls[0].id"),
    (at("name", value="n" * 1_000), 422, "bad_value", "name"),
    (at(*TEMPLATE, value="Say {{x}}"), 422, "template_error", "'y'"),
    (at(*TEMPLATE, value="{{y}} says {{x}}"), 422, "template_error", "line 1, column 1"),
    (at(*TEMPLATE, value="Say {{x}}\n{{y}} and more"), 422, "template_error", "line 2, column 7"),
    (at(*TEMPLATE, value="Say {{x}} {{a-b}} {{y}}"), 422, "template_error", "column 11"),
    (at(*TEMPLATE, value="Say {{x {{y}}"), 422, "template_error", "{{x"),
    (at(*TEMPLATE, value=" {{y}}"), 422, "template_error", "nothing before"),
    (at("variables", "x", value="x" * 10_001), 422, "limit_exceeded", "value_bytes allows 10000"),
    (at("variables", "x", value="ä" * 5_001), 422, "limit_exceeded", "value_bytes allows 10000"),
    (at("variables", "x", value=["x" * 6_000] * 2), 422, "limit_exceeded", "value_bytes allows 10000"),
    (at("calls", 0, "inputs", "x", value="x" * 10_001), 422, "limit_exceeded", "calls[0].inputs.x"),
    (
        at("calls", value=[echo(f"c{i}", "go", f"v{i}") for i in range(21)]),
        422,
        "limit_exceeded",
        "calls_per_program allows 20",
    ),
    (
        at("calls", value=[echo(f"c{i}", {"var": f"v{i}"} if i else "go", f"v{i + 1}") for i in range(11)]),
        422,
        "limit_exceeded",
        "depth allows 10",
    ),
]


@pytest.mark.parametrize(("change", "status", "type", "named"), TABLE, ids=[f"{row[2]}-{row[3][:30]}" for row in TABLE])
def test_a_refusal_names_the_culprit(
    server: Server, change: Callable[[dict[str, Any]], None], status: int, type: str, named: str
) -> None:
    response = server.http.post("/v1/programs", json=body(change))
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert (response.status_code, problem["status"], problem["type"]) == (status, status, type), problem
    assert named in problem["detail"] + problem["at"]
    assert response.elapsed.total_seconds() < 2


URL_FIELDS = ["api_base", "base_url", "url", "func_code"]
PLACES: list[tuple[Any, ...]] = [
    (),
    ("functions", "echo"),
    ("functions", "echo", "outputs", "y"),
    ("calls", 0),
    ("calls", 0, "inputs", "x"),
]


@pytest.mark.parametrize("field", URL_FIELDS)
@pytest.mark.parametrize("place", PLACES, ids=[".".join(map(str, place)) or "top" for place in PLACES])
def test_no_body_can_point_the_server_elsewhere(server: Server, field: str, place: tuple[Any, ...]) -> None:
    data = body(at("calls", 0, "inputs", "x", value={"var": "x"}))
    at(*place, field, value="http://127.0.0.1:9/")(data)
    response = server.http.post("/v1/programs", json=data)
    assert (response.status_code, response.json()["type"]) == (422, "unknown_field")
    assert field in response.json()["detail"]


RAW = [
    (b'{"variables": {"x": "\\ud83d"}}', 422, "surrogate"),
    (b'{"priority": NaN}', 422, "priority"),
    (b'{"priority": Infinity}', 422, "priority"),
    (b'{"priority": 1e999}', 422, "priority"),
    (b'{"variables": {"x": NaN}}', 422, "variables.x"),
    (b'{"name": "a", "name": "b"}', 400, "'name'"),
    (b'{"name": ', 400, "not JSON"),
    (b"\xff\xfe", 400, "UTF-8"),
    (b"[" * 100_000, 400, "nested"),
    (b'{"priority": ' + b"9" * 10_000 + b"}", 400, "number"),
    (b"", 400, "the body is empty"),
    (b"[]", 422, "object"),
    (b"null", 422, "object"),
]


@pytest.mark.parametrize(("raw", "status", "named"), RAW, ids=[raw[:24].decode(errors="replace") for raw, _, _ in RAW])
def test_bytes_that_are_no_body(server: Server, raw: bytes, status: int, named: str) -> None:
    response = server.http.post("/v1/programs", content=raw)
    assert response.status_code == status, response.text
    assert named in response.json()["detail"]
    for path in ("/v1/functions", "/v1/programs/p-1/calls"):
        assert server.http.post(path, content=raw).status_code in (400, 404, 422)


def test_a_body_of_100_mb_is_refused_while_it_is_sent(server: Server) -> None:
    begun = time.monotonic()
    with_length = server.http.post("/v1/programs", content=b"x" * 100_000_000)
    assert (with_length.status_code, with_length.json()["type"]) == (413, "limit_exceeded")
    assert "body_bytes allows, 1000000 bytes" in with_length.json()["detail"]
    chunked = server.http.post("/v1/programs", content=(b"x" * 1_000_000 for _ in range(100)))
    assert chunked.status_code == 413
    assert time.monotonic() - begun < 15


def test_a_client_that_asks_before_it_sends_need_not_send(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    connection.putrequest("POST", "/v1/programs")
    connection.putheader("Content-Length", "100000000")
    connection.putheader("Expect", "100-continue")
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("GET", "/", 404),
        ("DELETE", "/v1/functions", 405),
        ("GET", "/v1/programs/nobody", 404),
        ("GET", "/v1/programs/nobody/variables/v?wait=1", 404),
        ("GET", "/v1/programs/nobody/events", 404),
        ("GET", "/v1/programs/nobody/variables/v/stream", 404),
        ("GET", "/v1/programs/nobody/graph", 404),
        ("GET", "/v1/programs/nobody/trace", 404),
        ("DELETE", "/v1/programs/nobody", 404),
        ("POST", "/v1/programs/nobody/close", 404),
        ("PATCH", "/v1/programs/nobody", 404),
        ("GET", "/v1/functions/nobody", 404),
        ("GET", f"/v1/programs/{'p' * 1000}", 422),
        ("GET", "/v1/programs?limit=0", 422),
        ("GET", "/v1/programs?limit=many", 422),
        ("GET", "/v1/programs?sort=name", 422),
        ("POST", "/v1/programs?wait=6", 422),
        ("POST", "/v1/programs?wait=nan", 422),
        ("POST", "/v1/programs?wait=-1", 422),
    ],
)
def test_every_other_error_is_a_problem_too(server: Server, method: str, path: str, status: int) -> None:
    response = server.http.request(method, path)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["status"] == status
    assert len(response.content) < 1000


def test_an_unknown_parameter_is_named(server: Server) -> None:
    problem = server.http.post("/v1/programs?wat=3", content=b"{}").json()
    assert problem["type"] == "unknown_field"
    assert problem["detail"] == "query.wat: there is no such parameter"


@pytest.mark.parametrize("header", ["X-Request-Id", "Idempotency-Key", "Last-Event-ID"])
def test_long_and_strange_headers_are_refused_and_not_echoed(server: Server, header: str) -> None:
    path = "/v1/programs"
    for value in ("x" * 200, "a b" if header == "Idempotency-Key" else "a/é b"):
        if header == "Last-Event-ID":
            reply = server.submit({"close": False})
            response = server.http.get(f"{path}/{reply['id']}/events", headers={header: value.encode()})
            server.http.delete(f"{path}/{reply['id']}")
        else:
            response = server.http.post(path, json={"close": False}, headers={header: value.encode()})
        assert 400 <= response.status_code < 500
        assert len(response.content) < 1000
        assert value not in str(response.headers)


def test_a_header_of_a_megabyte_is_refused(server: Server) -> None:
    reader = server.send(b"GET /healthz HTTP/1.1\r\nHost: parrot\r\nX-Request-Id: " + b"x" * 1_000_000 + b"\r\n\r\n")
    assert 400 <= reader.status < 500


def test_our_own_faults_are_a_500_without_a_trace(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> httpx.Response:
        app = create_app(Runtime([]), Settings(engine="none"))

        @app.get("/broken")
        async def broken() -> None:
            raise KeyError("CANARY")

        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://parrot") as client:
            return await client.get("/broken")

    response = asyncio.run(main())
    assert (response.status_code, response.json()["type"]) == (500, "internal_error")
    incident = response.json()["detail"].split()[-1]
    assert f"incident {incident}" in caplog.text
    assert "KeyError" in caplog.text
    for text in (response.text, caplog.text):
        assert "CANARY" not in text
        assert "Traceback" not in text


def test_a_client_that_leaves_while_it_sends_is_no_fault_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    with serving() as running:
        reader = running.send(b"POST /v1/programs HTTP/1.1\r\nHost: parrot\r\nContent-Length: 100\r\n\r\n{")
        until(lambda: "Request.body" in running.tasks(), "a wait for the body")
        reader.leave()
        until(lambda: "Request.body" not in running.tasks(), "the end of that wait")
        assert running.http.get("/healthz").status_code == 200
    assert "incident" not in caplog.text


def test_so_many_functions_and_no_more() -> None:
    with serving(functions=2) as running:
        for number in range(3):
            body = {"name": f"f{number}", **function(f"Say {number} {{{{y}}}}", "y")}
            response = running.http.post("/v1/functions", json=body)
        assert (response.status_code, response.json()["type"]) == (422, "limit_exceeded")
        assert "functions allows 2" in response.json()["detail"]


def test_a_sound_program_is_taken(server: Server) -> None:
    response = server.http.post(
        "/v1/functions", json={"name": "f", **function("Say {{y}}", "y")}, params={"dry_run": True}
    )
    assert response.status_code == 200, json.dumps(response.json())
