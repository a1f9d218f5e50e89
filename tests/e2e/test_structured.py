"""Outputs that a JSON Schema or choices bind, through the whole server on the real model: whole and valid, or an error that says why."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.real import Real

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]
BIRD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "legs": {"type": "integer", "minimum": 0, "maximum": 4},
        "colours": {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 1, "maxItems": 2},
    },
    "required": ["name", "legs", "colours"],
    "additionalProperties": False,
}
NUMBERS = {"type": "array", "items": {"type": "integer"}, "minItems": 50}


def body(**sampling: Any) -> dict[str, Any]:
    """A program of one call whose output is bound so."""
    function = {"template": "Describe {{what}}.\n{{out}}", "outputs": {"out": {"max_tokens": 100, **sampling}}}
    call = {"id": "c", "function": "f", "inputs": {"what": "a parrot"}, "outputs": {"out": "out"}}
    return {"functions": {"f": function}, "calls": [call]}


def run(real: Real, **sampling: Any) -> dict[str, Any]:
    """What becomes of the variable."""
    program = real.http.post("/v1/programs", json=body(**sampling))
    assert program.status_code == 201, program.text
    reply = real.http.get(f"/v1/programs/{program.json()['id']}/variables/out", params={"wait": 60})
    found: dict[str, Any] = reply.json()
    return found | {"status": reply.status_code}


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_value_fits_its_schema(real: Real, temperature: float) -> None:
    found = run(real, schema=BIRD, temperature=temperature, seed=5)
    assert found["status"] == 200, found
    value = json.loads(found["value"])
    assert set(value) == {"name", "legs", "colours"}
    assert 0 <= value["legs"] <= 4
    assert set(value["colours"]) <= {"red", "green"}


def test_a_value_is_one_of_its_choices(real: Real) -> None:
    assert run(real, choices=["a bird", "a {fish}"], temperature=1.5)["value"] in ("a bird", "a {fish}")


def test_a_value_that_max_tokens_ends_is_an_error_of_its_own(real: Real) -> None:
    found = run(real, schema=NUMBERS, max_tokens=10)
    assert found["status"] == 424
    assert found["type"].endswith("output_truncated")
    assert found["call_id"] == "c"
    assert "max_tokens (10)" in found["detail"]


def test_a_value_that_a_stop_string_cuts_is_an_error_of_its_own(real: Real) -> None:
    found = run(real, schema=BIRD, stop=[":"])
    assert (found["status"], found["type"].rpartition("/")[2].rpartition(":")[2]) == (424, "output_invalid")
    assert "a stop string cut it" in found["detail"]


@pytest.mark.parametrize(
    ("schema", "type_"),
    [
        ({"type": "no such type"}, "invalid_schema"),
        ({"not": {"type": "string"}}, "invalid_schema"),
        ({"type": "string", "pattern": "(?=a)b"}, "invalid_schema"),
        ({"enum": ["x" * 70_000]}, "schema_too_complex"),
    ],
)
def test_a_schema_that_cannot_be_compiled_is_refused_when_it_is_sent(
    real: Real, schema: dict[str, Any], type_: str
) -> None:
    before = real.http.get("/v1/programs").json()["programs"]
    sent = body(schema=schema)
    function = sent["functions"]["f"]
    overriding = body()
    overriding["calls"][0]["sampling"] = {"out": {"schema": schema}}
    live = real.http.post("/v1/programs", json={"functions": body()["functions"]}).json()["id"]
    for path, what, names in (
        ("/v1/programs", sent, "'f'"),
        ("/v1/programs", overriding, "'c'"),
        (f"/v1/programs/{live}/calls", {"calls": overriding["calls"]}, "'c'"),
        ("/v1/functions", {"name": "f", **function}, "'f'"),
    ):
        reply = real.http.post(path, json=what)
        assert reply.status_code == 422, reply.text
        assert reply.json()["type"].endswith(type_)
        assert names in reply.json()["detail"], "it says whose"
        assert "x" * 100 not in reply.text
    real.http.delete(f"/v1/programs/{live}")
    assert len(real.http.get("/v1/programs").json()["programs"]) == len(before) + 1
