"""What a decorated Python function declares: parameters become input holes, the return annotation output holes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, TypedDict, TypeVar, Union, Unpack, get_args, get_origin, get_type_hints

from parrot_sdk.errors import FunctionError
from parrot_sdk.variable import Variable

T = TypeVar("T")
In = Union[T, Variable[T], Sequence[Union[Variable[Any], str]]]  # noqa: UP007 - `|` has no generic alias at run time
"""Annotates an input hole: `In[str]` takes a value, a variable, or a list of either, which is joined."""

IMPLIED_OUTPUT = "output"


class SamplingOptions(TypedDict, total=False):
    """How an output is generated; the names and ranges are those of the REST contract."""

    max_tokens: int
    temperature: float
    top_p: float
    stop: str | Sequence[str]
    keep_stop: bool
    seed: int
    ignore_eos: bool
    choices: Sequence[str]
    allow_empty: bool


class Out:
    """Names an output in a return annotation: `-> Annotated[str, Out("title", max_tokens=20)]`.

    Args:
        name: its hole in the template.
        options: how it is generated, where that differs from what the decorator says for all outputs.
    """

    def __init__(self, name: str, **options: Unpack[SamplingOptions]) -> None:
        self.name = name
        self.options = options


@dataclass(frozen=True, slots=True)
class Holes:
    """What a Python function declares.

    `literals` are parameters without `In`, `texts` those that are declared `str` or `In[str]`. `outputs` pairs a hole with its own
    options; `implied` says that no annotation named it, `several` that the function returns a tuple.
    """

    inputs: tuple[str, ...]
    literals: frozenset[str]
    texts: frozenset[str]
    outputs: tuple[tuple[str, SamplingOptions], ...]
    implied: bool
    several: bool


def read_holes(function: Callable[..., Any]) -> Holes:
    """Read a function's annotations. Raises FunctionError."""
    name = function.__name__
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise FunctionError(f"function {name}: an annotation uses a name that is not there: {error}") from None
    parameters = inspect.signature(function).parameters.values()
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise FunctionError(f"function {name}: parameter {parameter} cannot be a hole: name each parameter")
    literals = frozenset(p.name for p in parameters if p.name in hints and not _is_input(hints[p.name]))
    texts = frozenset(p.name for p in parameters if p.name in hints and _is_text(hints[p.name]))
    returned = hints.get("return", inspect.Signature.empty)
    several = get_origin(returned) is tuple
    parts = get_args(returned) if several else (returned,)
    outputs = tuple(_output(name, part, several) for part in parts)
    implied = not several and get_origin(returned) is not Annotated
    return Holes(tuple(p.name for p in parameters), literals, texts, outputs, implied, several)


def _is_input(annotation: object) -> bool:
    return any(part is Variable or get_origin(part) is Variable for part in (annotation, *get_args(annotation)))


def _is_text(annotation: object) -> bool:
    generic: Any = In
    return annotation is str or annotation == generic[str]


def _output(function: str, annotation: object, several: bool) -> tuple[str, SamplingOptions]:
    if get_origin(annotation) is Annotated:
        kind, *marks = get_args(annotation)
        out = next((mark for mark in marks if isinstance(mark, Out)), None)
    else:
        kind, out = annotation, None
    if kind in (None, NoneType, inspect.Signature.empty):
        raise FunctionError(f"function {function} must say what it returns: write `-> str`")
    if kind is not str:
        shown = getattr(kind, "__name__", str(kind))
        raise FunctionError(f"function {function} returns {shown}: only text is generated so far; write `-> str`")
    if out is None and several:
        raise FunctionError(
            f"function {function}: each of several outputs needs a name: "
            'write `-> tuple[Annotated[str, Out("first")], Annotated[str, Out("second")]]`'
        )
    return (out.name, out.options) if out else (IMPLIED_OUTPUT, SamplingOptions())
