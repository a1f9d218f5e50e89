"""From the bytes of a request to its model, with errors that say where in the body the culprit is."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from parrot_sdk.errors import BodyError
from parrot_sdk.wire.requests import TAGS

M = TypeVar("M", bound=BaseModel)

_SHOWN_CHARS = 64
_SHOWN_ERRORS = 5
_TYPES = {"extra_forbidden": "unknown_field", "missing": "missing_field"}


def read_body(model: type[M], body: bytes) -> M:
    """Parse and check a JSON body.

    Stricter than JSON readers usually are: a field that stands twice in an object and bytes that are
    not UTF-8 are errors.

    Args:
        model: a class of `parrot_sdk.wire`.
        body: the JSON text.

    Raises BodyError.
    """
    if not body:
        raise BodyError("bad_json", "the body is empty: send a JSON object, {} at the least")
    try:
        data = json.loads(body.decode(), object_pairs_hook=_unique)
    except BodyError:
        raise
    except RecursionError:
        raise BodyError("bad_json", "the body is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise BodyError("bad_json", f"the body is not UTF-8 (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise BodyError("bad_json", f"the body is not JSON: {error}") from None
    except ValueError:  # an integer of thousands of digits
        raise BodyError("bad_json", "the body holds a number that is too long") from None
    return check_body(model, data)


def check_body(model: type[M], data: object) -> M:
    """Check what was parsed already. Raises BodyError."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise _body_error(error) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise BodyError("bad_json", f"field {_shown(twice)} stands twice in one object")
    return fields


def _body_error(error: ValidationError) -> BodyError:
    """The first of the errors, with some of the others in its message: unknown fields stand first, as they cause others."""
    details = error.errors(include_url=False, include_input=False)
    details.sort(key=lambda detail: detail["type"] != "extra_forbidden")
    first, *others = details
    told = [f"{_path(other['loc'])}: {_message(other)}".removeprefix(": ") for other in others[: _SHOWN_ERRORS - 1]]
    left = len(details) - _SHOWN_ERRORS
    more = f" (and {left} more)" if left > 0 else ""
    message = "; ".join([_message(first), *told]) + more
    return BodyError(_TYPES.get(first["type"], "bad_value"), message, _path(first["loc"]))


def _message(detail: ErrorDetails) -> str:
    if detail["type"] == "extra_forbidden":
        return "unknown field"
    if detail["type"] == "missing":
        return "this field is missing"
    if detail["type"] == "string_pattern_mismatch" and detail["loc"][-1] == "[key]":
        return f"the name does not match {detail['ctx']['pattern']}"
    if detail["type"] == "string_unicode":
        return "a lone surrogate is no character: send valid Unicode"
    if detail["type"] in ("model_type", "dict_type"):
        return "a JSON object belongs here"
    return detail["msg"].removeprefix("Value error, ")


def _path(loc: tuple[int | str, ...]) -> str:
    """`calls[3].inputs.text` out of pydantic's location."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in TAGS and part != "[key]":
            path += f".{_shown(part, quoted=False)}"
    return path.removeprefix(".")


def _shown(name: str, quoted: bool = True) -> str:
    """A name that a client chose, made fit for a message: short and printable."""
    short = name if len(name) <= _SHOWN_CHARS else name[:_SHOWN_CHARS] + "…"
    return ascii(short) if quoted or not short.isprintable() else short
