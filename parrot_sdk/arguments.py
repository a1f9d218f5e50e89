"""The arguments of a call as bindings: values become text, variables become edges. Values are never parsed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from parrot_sdk.declaration import Declaration
from parrot_sdk.errors import FunctionError
from parrot_sdk.program import Program
from parrot_sdk.variable import Variable
from parrot_sdk.wire import InputBody


def bind(declaration: Declaration, program: Program, hole: str, value: Any) -> Any:
    """One argument as the JSON of a binding.

    A string is itself; a list for an `In` parameter, or one with a variable in it, is a list whose elements are joined; all
    else is its JSON text. None is refused where text belongs: it would be the word null. Raises FunctionError.
    """
    if isinstance(value, Variable):
        return program.reference(value)
    if isinstance(value, list | tuple) and _is_joined(declaration, hole, value):
        return [
            program.reference(part) if isinstance(part, Variable) else _text(declaration, hole, part) for part in value
        ]
    return _text(declaration, hole, value)


def show(declaration: Declaration, hole: str, value: Any) -> str:
    """One argument as it will stand in the prompt; a variable shows as a hole with its name."""
    if isinstance(value, Variable):
        return f"{{{{{value.name}}}}}"
    if isinstance(value, list | tuple) and _is_joined(declaration, hole, value):
        join = declaration.body.inputs.get(hole, InputBody()).join
        return join.join(show(declaration, hole, part) for part in value)
    return _text(declaration, hole, value)


def _is_joined(declaration: Declaration, hole: str, values: Sequence[Any]) -> bool:
    return hole not in declaration.literals or any(isinstance(value, Variable) for value in values)


def _text(declaration: Declaration, hole: str, value: Any) -> str:
    if value is None and (hole in declaration.texts or hole not in declaration.literals):
        raise FunctionError(f"{declaration.name}(): argument {hole!r} is None: give a text, which may be empty")
    try:
        if isinstance(value, BaseModel):
            value = value.model_dump_json()
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:
        message = "has a lone surrogate, which is no character"
    except RecursionError:
        message = "is nested too deeply"
    except (TypeError, ValueError):
        message = f"of type {type(value).__name__} is neither text, nor a variable, nor JSON without variables in it"
    else:
        return text
    raise FunctionError(f"{declaration.name}(): argument {hole!r} {message}")
