"""Programs over REST: submit, read, grow, set, change, cancel, list."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from parrot_server.engines.fake import Answer, FakeEngine
from parrot_server.errors import EngineError, Fault
from tests.serving import Server, echo, function, program, serving, until

MAP_REDUCE = {
    "functions": {
        "summarize": function("Sum up {{chapter}}: {{summary}}", "summary", max_tokens=250),
        "combine": function("Combine {{summaries}}: {{answer}}", "answer", max_tokens=400),
    },
    "variables": {"chapter_0": "one", "chapter_1": "two"},
    "calls": [
        {
            "id": "map_0",
            "function": "summarize",
            "inputs": {"chapter": {"var": "chapter_0"}},
            "outputs": {"summary": "s_0"},
        },
        {
            "id": "map_1",
            "function": "summarize",
            "inputs": {"chapter": {"var": "chapter_1"}},
            "outputs": {"summary": "s_1"},
        },
        {
            "id": "reduce",
            "function": "combine",
            "inputs": {"summaries": [{"var": "s_0"}, {"var": "s_1"}]},
            "outputs": {"answer": "answer"},
        },
    ],
}


def by_prompt(request: Any) -> Answer | None:
    """Slow where the prompt says so, failing where it says so, else the default answer."""
    text = "".join(piece.text for piece in request.prompt.pieces)
    if "SLOW" in text:
        return Answer("word " * 5000, delays_s=0.05)
    if "FAIL" in text:
        return Answer(then=EngineError(Fault.CALL, "refused_by_engine", "the engine refused it"))
    return None


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(FakeEngine(script=by_prompt)) as running:
        yield running


def test_a_map_reduce_runs_by_three_requests(server: Server) -> None:
    reply = server.submit(MAP_REDUCE)
    assert reply["state"] in ("running", "done")
    assert reply["variables"] == ["chapter_0", "chapter_1", "s_0", "s_1", "answer"]
    assert server.value(reply["id"], "answer", 60)
    graph = server.http.get(reply["links"]["graph"]).json()
    objectives = {node["id"]: node["objective"] for node in graph["nodes"]}
    assert objectives["reduce"] == "expedite"
    assert "batch" in (objectives["map_0"], objectives["map_1"])  # the last one of a join is expedited again
    assert {(edge["from"], edge["to"]) for edge in graph["edges"]} == {("map_0", "reduce"), ("map_1", "reduce")}
    view = server.http.get(f"/v1/programs/{reply['id']}").json()
    assert view["state"] == "done"
    assert view["calls"] == {"done": 3}
    assert view["usage"]["output_tokens"] == sum(node["usage"]["output_tokens"] for node in graph["nodes"])


def test_wait_brings_the_sinks_with_the_answer(server: Server) -> None:
    reply = server.submit(program(echo("a", "go", "v"), echo("b", "FAIL", "w"), echo("c", {"var": "v"}, "u")), wait=20)
    assert set(reply["values"]) == {"u"}
    assert reply["errors"]["w"]["type"] == "refused_by_engine"
    assert reply["errors"]["w"]["call"] == "b"
    assert reply["state"] == "failed"
    pending = server.submit(program(echo("a", "SLOW", "v")), wait=0.1)
    assert pending["values"] == pending["errors"] == {}
    assert server.http.delete(f"/v1/programs/{pending['id']}").json()["state"] == "cancelled"


def test_a_failure_travels_to_every_descendant_with_its_cause(server: Server) -> None:
    reply = server.submit(program(echo("a", "FAIL", "v"), echo("b", {"var": "v"}, "w"), echo("c", {"var": "w"}, "u")))
    response = server.http.get(f"/v1/programs/{reply['id']}/variables/u", params={"wait": 20})
    assert response.status_code == 424
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert (problem["type"], problem["call_id"], problem["program_id"]) == ("refused_by_engine", "a", reply["id"])
    assert problem["variable"]["state"] == "failed"


def test_a_variable_that_is_never_set_is_pending_after_its_wait(server: Server) -> None:
    reply = server.submit(program(echo("a", {"var": "x"}, "v"), variables={"x": None}))
    for name, state in (("x", "open"), ("v", "pending")):
        response = server.http.get(f"/v1/programs/{reply['id']}/variables/{name}", params={"wait": 1})
        assert response.status_code == 202
        assert 0.9 < response.elapsed.total_seconds() < 3
        assert response.json()["state"] == state
        assert "value" not in response.json()
    server.http.delete(f"/v1/programs/{reply['id']}")
    response = server.http.get(f"/v1/programs/{reply['id']}/variables/v", params={"wait": 1})
    assert (response.status_code, response.json()["type"]) == (424, "cancelled")


def test_a_put_sets_an_open_variable_once(server: Server) -> None:
    reply = server.submit(program(echo("a", {"var": "x"}, "v"), variables={"x": None}))
    url = f"/v1/programs/{reply['id']}/variables"
    first = server.http.put(f"{url}/x", json={"value": "{{y}} ünï"})
    assert (first.status_code, first.json()["value"]) == (200, "{{y}} ünï")
    assert server.http.put(f"{url}/x", json={"value": "{{y}} ünï"}).status_code == 200
    assert server.http.put(f"{url}/x", json={"value": "other"}).status_code == 409
    assert server.http.put(f"{url}/v", json={"value": "mine"}).status_code == 409
    assert server.http.put(f"{url}/nobody", json={"value": "mine"}).status_code == 404
    assert server.value(reply["id"], "v")
    assert "Say {{y}} ünï " in server.engine.prompts


def test_values_that_are_lists_and_values_that_are_empty(server: Server) -> None:
    reply = server.submit(
        program(
            echo("a", {"var": "many"}, "v"), echo("b", {"var": "none"}, "w"), variables={"many": ["a", "b"], "none": ""}
        )
    )
    assert server.value(reply["id"], "many") == ["a", "b"]
    assert server.value(reply["id"], "none") == ""
    assert server.value(reply["id"], "v")
    assert server.value(reply["id"], "w")
    assert {"Say a\n\nb ", "Say  "} <= set(server.engine.prompts)


def test_a_live_program_grows_until_it_is_closed(server: Server) -> None:
    reply = server.submit(program(echo("a", "go", "v"), close=False))
    assert reply["state"] == "open"
    url = f"/v1/programs/{reply['id']}"
    assert server.value(reply["id"], "v")
    more = server.http.post(f"{url}/calls", json={"calls": [echo("b", {"var": "v"}, "w")]})
    assert more.status_code == 201, more.text
    assert server.value(reply["id"], "w")
    assert server.http.get(url).json()["state"] == "open"
    assert server.http.post(f"{url}/close").status_code == 200
    assert until(lambda: server.http.get(url).json()["state"] == "done")
    late = server.http.post(f"{url}/calls", json={"calls": [echo("c", "go", "u")]})
    assert late.status_code == 409


def test_a_cycle_made_by_two_posts_is_refused_and_the_program_goes_on(server: Server) -> None:
    reply = server.submit(program(echo("a", {"var": "x"}, "v"), variables={"x": None}, close=False))
    url = f"/v1/programs/{reply['id']}"
    refused = server.http.post(f"{url}/calls", json={"calls": [echo("b", {"var": "v"}, "x")]})
    assert refused.status_code == 422
    assert refused.json()["type"] == "cycle"
    assert "b" in refused.json()["detail"]
    assert server.http.put(f"{url}/variables/x", json={"value": "go"}).status_code == 200
    assert server.value(reply["id"], "v")


def test_a_refused_submit_leaves_nothing(server: Server) -> None:
    before = server.http.get("/v1/programs").json()["programs"][0]["id"]
    sent = len(server.engine.requests)
    body = program(echo("a", "go", "v"), echo("b", {"var": "unset"}, "w"))
    assert server.http.post("/v1/programs", json=body).status_code == 422
    assert server.http.get("/v1/programs").json()["programs"][0]["id"] == before
    assert len(server.engine.requests) == sent


def test_a_patch_changes_what_is_wanted(server: Server) -> None:
    reply = server.submit(program(echo("a", "SLOW", "v")))
    url = f"/v1/programs/{reply['id']}"
    assert server.http.patch(url, json={"criteria": {"v": "throughput"}, "priority": 3}).status_code == 200
    assert server.http.patch(url, json={"criteria": {"nobody": "latency"}}).status_code in (404, 422)
    assert server.http.patch(url, json={"budget": {"wall_s": 0.2}}).status_code == 200
    response = server.http.get(f"{url}/variables/v", params={"wait": 10})
    assert (response.status_code, response.json()["type"]) == (424, "budget_exceeded")


def test_cancel_aborts_what_runs(server: Server) -> None:
    reply = server.submit(program(*(echo(f"c{i}", f"SLOW {i}", f"v{i}") for i in range(8))))
    until(lambda: server.engine.spec and sum("SLOW" in prompt for prompt in server.engine.prompts) >= 8)
    aborts = len(server.engine.aborts)
    assert server.http.delete(f"/v1/programs/{reply['id']}").json()["calls"] == {"cancelled": 8}
    until(lambda: len(server.engine.aborts) - aborts == 8, "eight aborts", 2)
    assert server.http.delete(f"/v1/programs/{reply['id']}").status_code == 200


def test_pages_of_programs(server: Server) -> None:
    mine = [server.submit(program(echo("a", "go", "v"), name=f"n{i}"))["id"] for i in range(7)]
    seen: list[str] = []
    cursor = None
    while len(seen) < 7:
        page = server.http.get("/v1/programs", params={"limit": 3} | ({"cursor": cursor} if cursor else {})).json()
        seen += [item["id"] for item in page["programs"]]
        cursor = page["next"]
    assert seen[:7] == mine[::-1]
    assert len(seen) == len(set(seen))


def test_the_same_key_and_body_is_one_program(server: Server) -> None:
    body = program(echo("a", "go", "v"))
    with ThreadPoolExecutor(8) as pool:
        barrier = threading.Barrier(8)

        def post(_: int) -> Any:
            barrier.wait()
            return server.http.post("/v1/programs", json=body, headers={"Idempotency-Key": "once"})

        responses = list(pool.map(post, range(8)))
    assert {response.status_code for response in responses} == {201}
    assert len({response.json()["id"] for response in responses}) == 1
    assert sum("idempotent-replayed" not in response.headers for response in responses) == 1
    other = server.http.post("/v1/programs", json=program(echo("b", "go", "v")), headers={"Idempotency-Key": "once"})
    assert (other.status_code, other.json()["type"]) == (409, "key_reused")


def test_a_key_whose_request_was_refused_can_be_used_again(server: Server) -> None:
    headers = {"Idempotency-Key": "again"}
    assert (
        server.http.post("/v1/programs", json=program(echo("a", {"var": "x"}, "v")), headers=headers).status_code == 422
    )
    assert server.http.post("/v1/programs", json=program(echo("a", "go", "v")), headers=headers).status_code == 201


def test_calls_with_a_key_are_added_once(server: Server) -> None:
    reply = server.submit(program(echo("a", "go", "v"), close=False))
    for _ in range(2):
        response = server.http.post(
            f"/v1/programs/{reply['id']}/calls",
            json={"calls": [echo("b", "go", "w")], "close": True},
            headers={"Idempotency-Key": "more"},
        )
        assert response.status_code == 201, response.text
    calls = server.http.get(f"/v1/programs/{reply['id']}").json()["calls"]
    assert sum(calls.values()) == 2


def test_ids_upstream_are_unique_whatever_clients_call_their_things(server: Server) -> None:
    for _ in range(3):
        server.submit(program(echo("same", "go", "v"), name="same"), wait=20)
    assert max(server.engine.counts.values()) == 1


def test_functions_are_known_by_their_content(server: Server) -> None:
    body = {"name": "greet", **function("Greet {{ who }} {{line}}", "line", max_tokens=9)}
    dry = server.http.post("/v1/functions", json=body, params={"dry_run": True})
    assert dry.status_code == 200
    assert server.http.get(f"/v1/functions/{dry.json()['id']}").status_code == 404
    first = server.http.post("/v1/functions", json=body)
    assert first.status_code == 201
    assert first.json() == dry.json()
    assert first.json()["segments"] == [{"text": "Greet "}, {"input": "who"}, {"text": " "}, {"output": "line"}]
    assert server.http.post("/v1/functions", json=body).status_code == 200
    assert server.http.post("/v1/functions", json={**body, "name": "other"}).json()["id"] == first.json()["id"]
    assert server.http.get(f"/v1/functions/{first.json()['id']}").json() == first.json()
    assert first.json()["id"] in {item["id"] for item in server.http.get("/v1/functions").json()["functions"]}
    for used in (first.json()["id"], "greet"):
        call = {"id": "a", "function": used, "inputs": {"who": "Ann"}, "outputs": {"line": "v"}}
        assert server.submit({"calls": [call]}, wait=20)["values"]["v"]


def test_a_later_post_may_use_the_names_of_the_first(server: Server) -> None:
    reply = server.submit(program(echo("a", "go", "v"), close=False))
    other = server.submit({"close": False})
    more = {"calls": [echo("b", "go", "w")]}
    assert server.http.post(f"/v1/programs/{reply['id']}/calls", json=more).status_code == 201
    refused = server.http.post(f"/v1/programs/{other['id']}/calls", json=more)
    assert (refused.status_code, refused.json()["type"]) == (422, "unknown_function")


def test_engines_health_metrics_and_the_document(server: Server) -> None:
    (engine,) = server.http.get("/v1/engines").json()["engines"]
    assert engine["up"]
    assert "can_pause" in engine["abilities"]
    assert server.http.get("/healthz").json() == {"status": "ok"}
    server.submit(program(echo("a", "go", "v")), wait=20)
    metrics = server.http.get("/metrics").text
    assert 'parrot_engine_up{engine="fake"} 1.0' in metrics
    assert "parrot_queue_seconds_count" in metrics
    document = server.http.get("/openapi.json").json()
    assert "ProgramBody" in document["components"]["schemas"]
    assert "post" in document["paths"]["/v1/programs"]
