"""Tokens are counted once, by what the engine says of the attempt that counted; an answer is never taken from another call."""

from __future__ import annotations

from typing import Any

from parrot_server.core.model import Usage
from parrot_server.engines.fake import FakeEngine
from parrot_server.engines.fake_script import Answer
from parrot_server.errors import EngineError, Fault
from tests.serving import Server, echo, function, program, serving

BROKEN = EngineError(Fault.ENGINE, "stream_broken", "cut")


def usage(server: Server, body: dict[str, Any]) -> dict[str, Any]:
    reply = server.submit(body, wait=20)
    assert reply["values"], reply
    variable: dict[str, Any] = server.http.get(f"/v1/programs/{reply['id']}/variables/v").json()
    found: dict[str, Any] = variable["usage"]
    totals = server.http.get(f"/v1/programs/{reply['id']}").json()["usage"]
    assert totals["output_tokens"] == found["output_tokens"]
    return found


def test_what_is_held_back_for_a_stop_string_is_counted_all_the_same() -> None:
    chunks = ["DE", "F", "G", "HI", " on", " EN", "D", " never"]
    with serving(FakeEngine(script=[Answer(chunks)])) as server:
        body = program(echo("a", "go", "v"))
        body["functions"]["echo"] = function("Say {{x}} {{y}}", "y", stop=["DEFGHIJ", "END"])
        assert usage(server, body)["output_tokens"] == 7
        reply = server.http.get("/v1/programs").json()["programs"][0]
        assert server.value(reply["id"], "v") == "DEFGHI on "


def test_attempts_that_failed_are_not_added_to_the_one_that_counts() -> None:
    said = Usage(prompt_tokens=100, cached_tokens=40, output_tokens=3)
    with serving(FakeEngine(script=[Answer("half of it", then=BROKEN), Answer("whole", usage=said)])) as server:
        found = usage(server, program(echo("a", "go", "v")))
        assert (found["prompt_tokens"], found["cached_tokens"], found["output_tokens"]) == (100, 40, 3)


def test_the_same_call_twice_runs_twice() -> None:
    with serving(FakeEngine(script=["one", "two", "three"])) as server:
        for said in ("one", "two", "three"):
            reply = server.submit(program(echo("a", "go", "v")), wait=20)
            assert reply["values"] == {"v": said}
        assert len(server.engine.requests) == 3
