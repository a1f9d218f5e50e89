"""The REST contract: closed at every depth, strict, and errors that say where the culprit is."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parrot_sdk.errors import BodyError
from parrot_sdk.template import Input, Output, Text
from parrot_sdk.wire import (
    CallsBody,
    FunctionBody,
    NamedFunctionBody,
    OutputBody,
    PatchBody,
    ProgramBody,
    VariableBody,
    VariableRef,
    read_body,
)

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}
OUTPUT = {
    "max_tokens": 250,
    "temperature": 0.5,
    "top_p": 0.9,
    "stop": ["\n", "END"],
    "keep_stop": True,
    "seed": 7,
    "ignore_eos": False,
    "schema": SCHEMA,
    "allow_empty": False,
}
FUNCTION = {
    "template": "Sum {{x}}{{o}}",
    "outputs": {"o": OUTPUT, "p": {"choices": ["yes", "no"], "stop": "x"}},
    "inputs": {"x": {"join": ", "}},
    "format": "text",
}
CALLS = [
    {
        "id": "a",
        "function": "f",
        "inputs": {"x": "text", "y": {"var": "v"}, "z": ["text", {"var": "w"}]},
        "outputs": {"o": "out"},
        "sampling": {"o": {"max_tokens": 1}},
        "model": "m",
        "after": ["b"],
        "each": "z",
        "race": "r",
        "retry": {"attempts": 3},
        "fallback": {"o": "none"},
        "timeout_s": 3,
        "expect_return_s": 0.5,
    },
    {"id": "b", "transform": {"field": "a.b"}, "inputs": {"value": {"var": "v"}}, "outputs": {"value": "t"}},
    {"id": "c", "transform": {"items": True}, "inputs": {"value": {"var": "v"}}, "outputs": {"value": "l"}},
    {"id": "d", "tool": "search", "inputs": {"q": "x"}, "outputs": {"r": "found"}, "fallback": "nothing"},
]
PROGRAM = {
    "name": "book",
    "functions": {"f": FUNCTION},
    "variables": {"v": "text", "w": None, "list": ["a", "b"]},
    "calls": CALLS,
    "criteria": {"out": "latency", "t": {"deadline_s": 5}},
    "priority": 2,
    "deadline_s": 60.0,
    "budget": {"total_tokens": 1000, "calls": 10, "wall_s": 5},
    "failure": "fail_fast",
    "close": True,
}
ADDED = {name: PROGRAM[name] for name in ("functions", "variables", "calls", "criteria", "close")}
PATCH = {name: PROGRAM[name] for name in ("criteria", "priority", "deadline_s", "budget")}
BODIES: list[tuple[type[Any], dict[str, Any]]] = [
    (ProgramBody, PROGRAM),
    (CallsBody, ADDED),
    (PatchBody, PATCH),
    (NamedFunctionBody, {"name": "f", **FUNCTION}),
    (VariableBody, {"value": "text"}),
]
FREE_KEYS = {
    "functions",
    "variables",
    "outputs",
    "inputs",
    "sampling",
    "criteria",
    "fallback",
}  # names that clients choose


def read(model: type[Any], body: object) -> Any:
    return read_body(model, json.dumps(body).encode())


def objects(body: Any, path: str = "", free: bool = False) -> Iterator[tuple[str, Any]]:
    """Every object of a body whose fields the contract names, with its path."""
    if isinstance(body, dict):
        if not free:
            yield path, body
        for name, part in body.items():
            if name != "schema":
                yield from objects(part, f"{path}.{name}".removeprefix("."), not free and name in FREE_KEYS)
    elif isinstance(body, list):
        for index, part in enumerate(body):
            yield from objects(part, f"{path}[{index}]")


UNKNOWN = [(model, body, path) for model, body in BODIES for path, _ in objects(body)]


@pytest.mark.parametrize(("model", "body"), BODIES, ids=lambda value: getattr(value, "__name__", ""))
def test_all_that_the_contract_has_is_read(model: type[Any], body: dict[str, Any]) -> None:
    parsed = read(model, body)
    assert isinstance(parsed, model)
    assert len(parsed.model_fields_set) == len(body), "a field was passed over"


@pytest.mark.parametrize(("model", "body", "path"), UNKNOWN, ids=[f"{m.__name__}:{p}" for m, _, p in UNKNOWN])
@given(name=st.text(max_size=20))
def test_an_unknown_field_is_refused_at_any_depth(model: type[Any], body: dict[str, Any], path: str, name: str) -> None:
    changed = copy.deepcopy(body)
    place = next(part for where, part in objects(changed) if where == path)
    place[f"{name}_unknown"] = 1
    with pytest.raises(BodyError) as caught:
        read(model, changed)
    assert caught.value.type == "unknown_field"
    assert caught.value.at.startswith(path)


def test_the_depths_are_deep() -> None:
    paths = {path for _, _, path in UNKNOWN}
    assert {"", "functions.f", "functions.f.outputs.o", "calls[0].inputs.z[1]", "calls[1].transform"} <= paths


@pytest.mark.parametrize(("model", "body", "path"), UNKNOWN, ids=[f"{m.__name__}:{p}" for m, _, p in UNKNOWN])
def test_null_is_refused_where_a_value_is_meant(model: type[Any], body: dict[str, Any], path: str) -> None:
    place = next(part for where, part in objects(body) if where == path)
    for name in place:
        changed = copy.deepcopy(body)
        next(part for where, part in objects(changed) if where == path)[name] = None
        with pytest.raises(BodyError):
            read(model, changed)


def test_null_empty_and_missing_are_three_things() -> None:
    assert read(VariableBody, {"value": ""}).value == ""
    with pytest.raises(BodyError, match=r"^value: this field is missing$"):
        read(VariableBody, {})
    with pytest.raises(BodyError, match="a value is a string"):
        read(VariableBody, {"value": None})
    body = read(ProgramBody, {"variables": {"open": None, "empty": ""}})
    assert body.variables == {"open": None, "empty": ""}


@pytest.mark.parametrize("value", [{"a": 1}, 1, 1.5, True, ["a", 1], ["a", None], [["a"]]])
def test_a_value_that_is_no_text_is_refused_with_the_way_out(value: object) -> None:
    with pytest.raises(BodyError) as caught:
        read(VariableBody, {"value": value})
    assert "JSON text" in str(caught.value) or caught.value.at.startswith("value[")
    with pytest.raises(BodyError) as caught:
        read(ProgramBody, {"variables": {"x": value}})
    assert caught.value.at.startswith("variables.x")


@pytest.mark.parametrize("binding", [{"a": 1}, 1, True, None, [["a"]], {"var": 1}, {"var": "b c"}, [{"var": "a"}, 1]])
def test_a_binding_is_text_a_variable_or_a_list_of_those(binding: object) -> None:
    with pytest.raises(BodyError) as caught:
        read(ProgramBody, {"calls": [{"id": "a", "function": "f", "inputs": {"x": binding}}]})
    assert caught.value.at.startswith("calls[0].inputs.x")


def test_bindings_are_told_apart() -> None:
    call = read(ProgramBody, PROGRAM).calls[0]
    assert call.inputs == {"x": "text", "y": VariableRef(var="v"), "z": ["text", VariableRef(var="w")]}


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("max_tokens", [0, -1, 1.0, "1", True, 2**31]),
        ("temperature", [-0.1, 2.1, "0", True, float("nan"), float("inf")]),
        ("top_p", [0, 1.01, -1, "1"]),
        ("stop", ["", [""], ["a"] * 17, "a" * 257, [1], {"a": 1}]),
        ("seed", [1.5, "1", 2**63]),
        ("keep_stop", [1, "true"]),
        ("schema", ["{}", [], {"$ref": "http://example.org/x"}, {"a": float("nan")}, {"a": "\ud800"}]),
        ("choices", [[], [""], "yes", [1]]),
        ("n", [1, 3]),
        ("json_schema", [{}]),
        ("response_format", [{}]),
        ("api_base", ["http://example.org"]),
    ],
)
def test_ranges_of_an_output(option: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(BodyError) as caught:
            read(NamedFunctionBody, {"name": "f", "template": "a{{o}}", "outputs": {"o": {option: value}}})
        assert caught.value.at.startswith(f"outputs.o.{option}")


def test_limits_of_an_output_are_inclusive() -> None:
    body = {"max_tokens": 1, "temperature": 2, "top_p": 1, "stop": ["a" * 256] * 16, "seed": -(2**63)}
    assert read(OutputBody, body).temperature == 2.0
    assert read(OutputBody, {"stop": "x"}).stop == ["x"]
    with pytest.raises(BodyError, match="a schema or choices"):
        read(OutputBody, {"schema": {}, "choices": ["a"]})


def test_a_deep_schema_is_refused_without_recursion() -> None:
    deep: dict[str, Any] = {}
    for _ in range(500):
        deep = {"items": deep}
    with pytest.raises(BodyError, match="levels"):
        read(OutputBody, {"schema": deep})


@pytest.mark.parametrize("attempts", [0, 11, 1.0, "3"])
def test_range_of_attempts(attempts: object) -> None:
    with pytest.raises(BodyError, match="attempts"):
        read(CallsBody, {"calls": [{"id": "a", "function": "f", "retry": {"attempts": attempts}}]})


@pytest.mark.parametrize(
    "call",
    [
        {"id": "a"},
        {"id": "a", "function": "f", "tool": "t"},
        {"id": "a", "transform": {}},
        {"id": "a", "transform": {"field": "a", "items": True}},
        {"id": "a", "transform": {"items": False}},
        {"id": "a", "transform": {"field": ""}},
        {"id": "a", "transform": {"field": "a..b"}},
        {"id": "a b", "function": "f"},
        {"id": "", "function": "f"},
        {"id": "a" * 129, "function": "f"},
        {"id": "a\n", "function": "f"},
        {"id": "a", "function": "f", "model": "a\nb"},
        {"id": "a", "function": "f", "race": "\u200b"},
        {"id": "a", "function": "f", "timeout_s": 0},
        {"id": "a", "function": "f", "fallback": 1},
        {"id": "a", "function": "f", "outputs": {"o": "b c"}},
        {"id": "a", "function": "f", "inputs": {"not-a-hole": "x"}},
        {"id": "a", "function": "f", "func_code": "gASV"},
    ],
)
def test_calls_that_are_refused(call: dict[str, Any]) -> None:
    with pytest.raises(BodyError) as caught:
        read(CallsBody, {"calls": [call]})
    assert caught.value.at.startswith("calls[0]")


@pytest.mark.parametrize("criterion", ["fast", 5, None, {"deadline_s": 0}, {"deadline_s": "5"}, ["latency"]])
def test_criteria_that_are_refused(criterion: object) -> None:
    with pytest.raises(BodyError) as caught:
        read(PatchBody, {"criteria": {"x": criterion}})
    assert caught.value.at.startswith("criteria.x")


@pytest.mark.parametrize(
    ("body", "type", "words"),
    [
        (b"{", "bad_json", "not JSON"),
        (b"[]", "bad_value", "a JSON object belongs here"),
        (b'"x"', "bad_value", "a JSON object belongs here"),
        (b"\xff", "bad_json", "not UTF-8"),
        (b'{"name": "a", "name": "b"}', "bad_json", "'name' stands twice"),
        (b'{"calls": [{"id": "a", "id": "b", "function": "f"}]}', "bad_json", "'id' stands twice"),
        (b"[" * 200_000, "bad_json", "too deeply"),
        (b'{"priority": ' + b"1" * 10_000 + b"}", "bad_json", "too long"),
        (b'{"priority": NaN}', "bad_value", "priority: "),
        (b'{"priority": -Infinity}', "bad_value", "priority: "),
        (b'{"deadline_s": 1e999}', "bad_value", "deadline_s: "),
        (b'{"variables": {"x": "\\ud800"}}', "bad_value", "variables.x: a lone surrogate"),
        (b'{"variables": {"x": ["a", "\\udfff"]}}', "bad_value", "variables.x[1]: a lone surrogate"),
        (b'{"variables": {"\\ud800": "x"}}', "bad_value", "lone surrogate"),
        (b'{"name": "\\ud800"}', "bad_value", "name: a lone surrogate"),
    ],
)
def test_json_that_is_refused(body: bytes, type: str, words: str) -> None:
    with pytest.raises(BodyError) as caught:
        read_body(ProgramBody, body)
    assert caught.value.type == type
    assert words in str(caught.value)
    assert len(str(caught.value)) < 300


def test_an_empty_body_is_refused_and_an_empty_object_is_not() -> None:
    assert read_body(CallsBody, b"{}").close is False
    with pytest.raises(BodyError, match="the body is empty") as caught:
        read_body(CallsBody, b"")
    assert caught.value.type == "bad_json"


def test_several_errors_are_told_at_once_unknown_fields_first() -> None:
    call = {"function": 3, "inputs": {"x": 1}, "output": {}}
    with pytest.raises(BodyError) as caught:
        read(ProgramBody, {"functons": {}, "calls": [call], "priority": "high"})
    assert caught.value.type == "unknown_field"
    assert str(caught.value).startswith(
        "calls[0].output: unknown field; functons: unknown field; calls[0].id: this field is missing"
    )
    assert "function" in str(caught.value)
    assert "calls[0].inputs.x: a binding is" in str(caught.value)
    assert str(caught.value).endswith("(and 1 more)")


def test_errors_hold_no_values() -> None:
    """What a client sent as a value is not echoed; the names that it chose are cut short."""
    for body in [{"variables": {"x": {"secret": "CANARY"}}}, {"calls": "CANARY"}, {"priority": "CANARY"}]:
        with pytest.raises(BodyError) as caught:
            read(ProgramBody, body)
        assert "CANARY" not in str(caught.value)
    with pytest.raises(BodyError) as caught:
        read(ProgramBody, {"x" * 1_000_000: 1})
    assert len(str(caught.value)) < 300


def test_close_is_the_default_where_there_are_calls() -> None:
    assert read(ProgramBody, {"calls": CALLS}).closed
    assert not read(ProgramBody, {}).closed
    assert not read(ProgramBody, {"calls": CALLS, "close": False}).closed


def test_a_function_body_knows_its_segments_and_its_identity() -> None:
    body = FunctionBody(template="Sum {{x}}{{o}}", outputs={"o": OutputBody(max_tokens=256)})
    assert body.parse().segments == (Text("Sum "), Input("x"), Output("o"))
    assert body.id == read(NamedFunctionBody, {"name": "n", "template": "Sum {{x}}{{o}}", "outputs": {"o": {}}}).id
    assert body.id != FunctionBody(template="Sum {{x}}{{o}}", outputs={"o": OutputBody(max_tokens=1)}).id


def test_ten_thousand_calls_are_read_fast() -> None:
    count = 10_000
    calls: list[dict[str, Any]] = [
        {"id": f"m-{i}", "function": "f", "inputs": {"x": {"var": f"v-{i}"}}, "outputs": {"o": f"s-{i}"}}
        for i in range(count)
    ]
    binding = [{"var": f"s-{i}"} for i in range(count)]
    calls.append({"id": "reduce", "function": "g", "inputs": {"x": binding}, "outputs": {"o": "answer"}})
    variables = {f"v-{i}": f"chapter {i} " * 10 for i in range(count)}
    body = json.dumps({"functions": {"f": FUNCTION, "g": FUNCTION}, "variables": variables, "calls": calls}).encode()
    seconds = []
    for _ in range(3):
        begun = time.process_time()
        assert len(read_body(ProgramBody, body).calls) == count + 1
        seconds.append(time.process_time() - begun)
    assert min(seconds) < 1.0
