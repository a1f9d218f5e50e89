"""Keys: everything is closed without one, and nobody sees another tenant's programs."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from starlette.routing import Route

from parrot_server.api.app import create_app
from parrot_server.api.key_guard import OPEN_PATHS
from parrot_server.config import Settings
from parrot_server.engines.fake import FakeEngine
from parrot_server.runtime import Runtime
from tests.serving import Server, echo, function, program, serving

KEYS = {"key-of-ann": "ann", "key-of-bob": "bob"}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(FakeEngine(), api_keys=KEYS) as running:
        yield running


def of(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def routes() -> list[tuple[str, str]]:
    app = create_app(Runtime([]), Settings(engine="none"))
    found = [(method, path) for path, operations in app.openapi()["paths"].items() for method in operations]
    plain = [(method, route.path) for route in app.routes if isinstance(route, Route) for method in route.methods or ()]
    return sorted({(method.upper(), path) for method, path in found + plain})


@pytest.mark.parametrize(("method", "path"), routes())
def test_every_route_is_closed_but_the_listed_ones(server: Server, method: str, path: str) -> None:
    sent = len(server.engine.requests)
    for headers in ({}, of("wrong"), {"Authorization": "Basic key-of-ann"}, of("KEY-OF-ANN")):
        response = server.http.request(method, path.format(program_id="p", name="v", function_id="f"), headers=headers)
        if path in OPEN_PATHS:
            assert response.status_code == 200
        else:
            assert response.status_code == 401
            assert method == "HEAD" or response.json()["type"] == "unauthorized"
            assert response.headers["www-authenticate"] == "Bearer"
    assert len(server.engine.requests) == sent


def test_the_list_of_routes_is_whole() -> None:
    assert len(routes()) > 15
    assert ("GET", "/v1/programs/{program_id}/variables/{name}/stream") in routes()
    assert {"/healthz", "/readyz"} == OPEN_PATHS


@pytest.mark.parametrize(
    "path", ["/v1//programs", "//v1/programs", "/v1/programs/", "/healthz/../v1/programs", "/healthz/"]
)
def test_no_spelling_of_a_path_opens_it(server: Server, path: str) -> None:
    assert server.send(f"GET {path} HTTP/1.1\r\nHost: parrot\r\n\r\n".encode()).status == 401


def test_an_unknown_key_cannot_make_the_server_read_a_large_body(server: Server) -> None:
    response = server.http.post("/v1/programs", content=b"x" * 50_000_000)
    assert response.status_code == 401


def test_tenants_do_not_see_each_other(server: Server) -> None:
    ann, bob = of("key-of-ann"), of("key-of-bob")
    made = server.http.post("/v1/programs", json=program(echo("a", "go", "v"), close=False), headers=ann)
    url = f"/v1/programs/{made.json()['id']}"
    paths = ["", "/graph", "/trace", "/events", "/variables/v", "/variables/v/stream"]
    responses: list[httpx.Response] = [server.http.get(url + path, headers=bob) for path in paths]
    responses += [
        server.http.delete(url, headers=bob),
        server.http.patch(url, json={}, headers=bob),
        server.http.post(f"{url}/close", headers=bob),
        server.http.post(f"{url}/calls", json={"calls": []}, headers=bob),
        server.http.put(f"{url}/variables/v", json={"value": "x"}, headers=bob),
    ]
    assert {response.status_code for response in responses} == {404}
    assert server.http.get("/v1/programs", headers=bob).json()["programs"] == []
    assert len(server.http.get("/v1/programs", headers=ann).json()["programs"]) == 1
    assert server.http.get(url, headers=ann).json()["state"] == "open"


def test_a_name_of_a_function_means_what_its_own_tenant_said(server: Server) -> None:
    call = {"id": "a", "function": "greet", "outputs": {"line": "v"}}
    for key, template in (("key-of-ann", "Greet {{line}}"), ("key-of-bob", "Insult {{line}}")):
        body = {"name": "greet", **function(template, "line")}
        assert server.http.post("/v1/functions", json=body, headers=of(key)).status_code == 201
    for key, said in (("key-of-ann", "Greet "), ("key-of-bob", "Insult ")):
        made = server.http.post("/v1/programs", params={"wait": 20}, json={"calls": [call]}, headers=of(key))
        assert made.status_code == 201
        assert server.engine.prompts[-1] == said
        (listed,) = server.http.get("/v1/functions", headers=of(key)).json()["functions"]
        assert listed["segments"][0] == {"text": said}


def test_a_function_s_text_is_its_own_tenant_s(server: Server) -> None:
    """Who guesses a template learns not even whether another tenant uses it."""
    body = {"name": "secret", **function("A secret {{line}}", "line")}
    made = server.http.post("/v1/functions", json=body, headers=of("key-of-ann")).json()
    path = f"/v1/functions/{made['id']}"
    assert server.http.get(path, headers=of("key-of-ann")).json()["segments"] == made["segments"]
    assert server.http.get(path, headers=of("key-of-bob")).status_code == 404
    call = {"calls": [{"id": "a", "function": made["id"], "outputs": {"line": "v"}}]}
    assert server.http.post("/v1/programs", json=call, headers=of("key-of-ann")).status_code == 201
    refused = server.http.post("/v1/programs", json=call, headers=of("key-of-bob"))
    assert (refused.status_code, refused.json()["type"]) == (422, "unknown_function")
    assert server.http.post("/v1/functions", json=body, headers=of("key-of-bob")).status_code == 201
    assert server.http.get(path, headers=of("key-of-bob")).status_code == 200


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ("Bearer key-of-ann", 200),
        ("bearer  key-of-ann", 200),
        ("key-of-ann", 401),
        ("Basic key-of-ann", 401),
        ("Bearer", 401),
        ("Bearer key-of-ann key-of-bob", 401),
    ],
)
def test_a_key_comes_as_a_bearer_token(server: Server, sent: str, status: int) -> None:
    assert server.http.get("/v1/programs", headers={"Authorization": sent}).status_code == status


def test_tenants_share_no_cache(server: Server) -> None:
    for key in KEYS:
        for _ in range(2):
            response = server.http.post(
                "/v1/programs", params={"wait": 20}, json=program(echo("a", "same", "v")), headers=of(key)
            )
            assert response.status_code == 201
    salts = [request.salt for request in server.engine.requests[-4:]]
    assert salts[0] == salts[1] != salts[2] == salts[3]


def test_the_same_idempotency_key_of_two_tenants_is_two_programs(server: Server) -> None:
    made = [
        server.http.post(
            "/v1/programs", json=program(echo("a", "go", "v")), headers={**of(key), "Idempotency-Key": "same"}
        ).json()["id"]
        for key in KEYS
    ]
    assert made[0] != made[1]
