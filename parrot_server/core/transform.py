"""The pure operations that the server runs on values by itself: a field of a JSON value, and the elements of a list."""

from __future__ import annotations

import json
from functools import lru_cache

from parrot_server.core.cost import estimate_tokens
from parrot_server.core.model import Binding, Transform, Value
from parrot_server.core.program import Program

MOST_ELEMENTS = 100_000  # of a list that a value is taken apart into: more would hold up everybody for a second


class TransformFailed(Exception):
    """A value is not of the shape that an operation needs. Says what it looked for, never what the value holds."""


def apply(transform: Transform, value: Value) -> Value:
    """Run a transform. Raises TransformFailed."""
    if transform.kind == "items":
        return list_value(_items(value))
    found = _json(value.text)
    for name in transform.path.split("."):
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdigit() and int(name) < len(found):
            found = found[int(name)]
        else:
            raise TransformFailed(f"the value has no field {transform.path!r} (looked for {name!r})")
    text = _text(found)
    return Value(text, estimate_tokens(text))


def elements(program: Program, binding: Binding, *, spread: bool = False) -> list[Value]:
    """The values of a binding whose variables are set; with `spread`, a single list value becomes its elements."""
    parts = binding if isinstance(binding, tuple) else (binding,)
    values = []
    for part in parts:
        outcome = part if isinstance(part, Value) else program.variables[part.name].outcome
        assert isinstance(outcome, Value), "transformed before its inputs are set"
        values.append(outcome)
    if spread and not isinstance(binding, tuple):
        return [Value(text, estimate_tokens(text)) for text in _items(values[0])]
    return values


def list_value(items: tuple[str, ...]) -> Value:
    """A list variable's value."""
    return Value(json.dumps(items, ensure_ascii=False), sum(map(estimate_tokens, items)), items)


def _items(value: Value) -> tuple[str, ...]:
    if value.items is not None:
        return value.items
    found = _json(value.text)
    if not isinstance(found, list):
        raise TransformFailed("the value is not a JSON list")
    if len(found) > MOST_ELEMENTS:
        raise TransformFailed(
            f"the value is a list of {len(found)} elements; at most {MOST_ELEMENTS} can be taken apart"
        )
    return tuple(map(_text, found))


@lru_cache(maxsize=1)  # many calls may each take a field of one large value
def _json(text: str) -> object:
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError):
        raise TransformFailed("the value is not JSON") from None
    return found


def _text(found: object) -> str:
    try:
        text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
    except RecursionError:
        raise TransformFailed("the value is nested too deeply") from None
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise TransformFailed("the value holds half a character (a lone surrogate)") from None
    return text
