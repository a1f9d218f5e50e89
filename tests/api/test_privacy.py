"""What users send is in no log, no metric and no error."""

from __future__ import annotations

import logging

import pytest

from parrot_server.engines.base import Request
from parrot_server.engines.fake import Answer, FakeEngine
from parrot_server.errors import EngineError, Fault
from tests.serving import echo, function, serving

CANARY = "CANARY-7d1f"


def script(request: Request) -> Answer | str:
    text = "".join(piece.text for piece in request.prompt.pieces)
    if "FAULT" in text:
        raise RuntimeError(f"adapter fault at {text}")
    if "FAIL" in text:
        return Answer(f"{CANARY} half", then=EngineError(Fault.ENGINE, "stream_broken", "cut"))
    return f"{CANARY} answer"


def test_a_canary_is_found_nowhere_but_in_its_value(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with serving(FakeEngine(script=script), api_keys={f"{CANARY}-key": "ann"}) as server:
        server.http.headers["Authorization"] = f"Bearer {CANARY}-key"
        caplog.clear()
        texts = {}
        for kind in ("fine", "FAIL", "FAULT"):
            body = {
                "functions": {"f": function(f"{CANARY} {kind} {{{{x}}}} {{{{y}}}}", "y")},
                "variables": {"x": f"{CANARY} value"},
                "calls": [
                    {
                        "id": "a",
                        "function": "f",
                        "inputs": {"x": {"var": "x"}},
                        "outputs": {"y": "v"},
                        "retry": {"attempts": 1},
                    }
                ],
            }
            reply = server.submit(body)
            url = f"/v1/programs/{reply['id']}"
            read = server.http.get(f"{url}/variables/v", params={"wait": 30})
            assert read.status_code == (200 if kind == "fine" else 424)
            texts[f"{kind} graph"] = server.http.get(f"{url}/graph").text
            texts[f"{kind} trace"] = server.http.get(f"{url}/trace").text
            texts[f"{kind} events"] = server.http.get(f"{url}/events").text
            if kind != "fine":
                texts[kind] = read.text
        refusals = [
            server.http.post("/v1/programs", content=f'{{"variables": {{"x": "{CANARY}'.encode()),
            server.http.post("/v1/programs", json={"variables": {"x": {"a": CANARY}}}),
            server.http.post("/v1/programs", json={"functions": {"f": function(f"{CANARY} {{{{y}}}} {CANARY}", "y")}}),
            server.http.post("/v1/programs", json={"calls": [echo("a", f"{CANARY}", "v")]}),
        ]
        assert {response.status_code for response in refusals} <= {400, 422}
        texts |= {f"refusal {number}": response.text for number, response in enumerate(refusals)}
        texts["metrics"] = server.http.get("/metrics").text
        texts["engines"] = server.http.get("/v1/engines").text
    texts["log"] = "\n".join(
        record.getMessage() + str(record.exc_info or "") for record in caplog.records if record.name != "httpx"
    )
    assert "incident" in texts["log"]
    for place, text in texts.items():
        assert CANARY not in text, place
