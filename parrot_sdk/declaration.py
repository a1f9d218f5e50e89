"""From a Python function, or a file that it names, to the semantic function that is sent."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from pydantic import BaseModel

from parrot_sdk.errors import BodyError, FunctionError, TemplateError
from parrot_sdk.function_file import FunctionFile, read_function_file
from parrot_sdk.holes import Holes, SamplingOptions, read_holes
from parrot_sdk.template import Format, Template, imply_output, parse
from parrot_sdk.variable import Variable
from parrot_sdk.wire import CallBody, FunctionBody, InputBody, OutputBody, check_body

M = TypeVar("M", bound=BaseModel)


class CallOptions(TypedDict, total=False):
    """How a call is run.

    `model` answers; it is tried `attempts` times in all (at most 10), each for `timeout_s`; `fallback` is the value if all fail
    (a string, or one for each output hole); the calls of the variables in `after` must have ended before.
    """

    model: str
    attempts: int
    timeout_s: float
    fallback: str | Mapping[str, str]
    after: Sequence[Variable[Any]]


class FunctionOptions(SamplingOptions, CallOptions, total=False):
    """All that the decorator takes besides the template."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """A semantic function as Python declares it.

    `literals` are the parameters without `In`, `texts` those that are declared `str` or `In[str]`, `outputs` the output holes in the
    order in which they are returned, `several` says that this is a tuple.
    """

    name: str
    body: FunctionBody
    template: Template
    literals: frozenset[str]
    texts: frozenset[str]
    outputs: tuple[str, ...]
    several: bool


def declare(
    python: Callable[..., Any],
    path: str | Path | None,
    format: Format | None,
    joins: Mapping[str, str],
    options: FunctionOptions,
) -> Declaration:
    """Read a function's signature, and its docstring or file. Raises TemplateError, FunctionError, OSError."""
    name = python.__name__
    if inspect.iscoroutinefunction(python) or inspect.isgeneratorfunction(python):
        raise FunctionError(f"function {name} must be a plain `def`: its body is never run")
    holes = read_holes(python)
    file = FunctionFile(name=name, template=_docstring(python), outputs={}) if path is None else _file(python, path)
    outputs = _outputs(name, holes, file, options)
    try:
        text = file.template if file.outputs or len(outputs) > 1 else imply_output(file.template, next(iter(outputs)))
        fields = {hole: InputBody(join=join) for hole, join in joins.items()}
        body = FunctionBody(
            template=text, outputs=outputs, inputs={**file.inputs, **fields}, format=format or file.format
        )
        inputs = {*holes.inputs, *body.inputs}
        template = parse(text, outputs, inputs, body.format, all_declared=True)
    except TemplateError as error:
        line = error.line + file.first_line - 1
        raise TemplateError(f"function {name}: {error.message}", line, error.column) from None
    if missing := inputs.difference(holes.inputs):
        raise FunctionError(f"function {name} has no parameter {min(missing)!r}, for which a join is declared")
    names = tuple(hole for hole, _ in holes.outputs) if holes.several else template.outputs
    return Declaration(name, body, template, holes.literals, holes.texts, names, holes.several)


def call_options(name: str, options: FunctionOptions) -> dict[str, Any]:
    """The options of a call as fields of its JSON, but for `after`. Raises FunctionError, also for an unknown option."""
    for option in options:
        if option not in FunctionOptions.__annotations__:
            known = ", ".join(FunctionOptions.__annotations__)
            raise FunctionError(f"function {name}: unknown option {option!r}; there are {known}")
    said: Mapping[str, Any] = options
    fields = {option: said[option] for option in ("model", "timeout_s", "fallback") if option in said}
    if "attempts" in said:
        fields["retry"] = {"attempts": said["attempts"]}
    _checked(CallBody, f"function {name}", {"id": "call", "function": "function", **fields})
    return fields


def sampling_overrides(declaration: Declaration, before: Mapping[str, Any], options: FunctionOptions) -> dict[str, Any]:
    """The field `sampling` of a call, where options change how outputs are generated; empty where they do not."""
    said = _sampling_options(options)
    if not said:
        return {}
    now = {
        hole: output.model_dump(by_alias=True, exclude_none=True) for hole, output in declaration.body.outputs.items()
    }
    now |= before.get("sampling", {})
    bodies = {hole: _sampling(declaration.name, hole, fields | said) for hole, fields in now.items()}
    return {"sampling": {hole: body.model_dump(by_alias=True, exclude_none=True) for hole, body in bodies.items()}}


def _docstring(python: Callable[..., Any]) -> str:
    if not python.__doc__:
        raise FunctionError(
            f"function {python.__name__} has no prompt: write it as the docstring, or name a template file"
        )
    return inspect.cleandoc(python.__doc__)


def _file(python: Callable[..., Any], path: str | Path) -> FunctionFile:
    """The file at a path relative to the working directory, or else to the file of the function."""
    beside = Path(inspect.getfile(python)).parent / path
    for place in (Path(path), beside):
        if place.exists():
            return read_function_file(place)
    raise FunctionError(f"function {python.__name__}: there is no template file {path}, nor {beside}")


def _outputs(name: str, holes: Holes, file: FunctionFile, options: FunctionOptions) -> dict[str, OutputBody]:
    """The output holes with their options: the file's, over them the decorator's, over them those of `Out`."""
    declared = dict(holes.outputs)
    if len(declared) < len(holes.outputs):
        raise FunctionError(f"function {name}: two outputs have the same name")
    if file.outputs and holes.implied and len(file.outputs) == 1:
        declared = {hole: SamplingOptions() for hole in file.outputs}
    if file.outputs and file.outputs.keys() != declared.keys():
        listed = ", ".join(file.outputs)
        raise FunctionError(f"function {name}: its return annotation must name the outputs of its file: {listed}")
    outputs = {}
    for hole, own in declared.items():
        base = file.outputs[hole].model_dump(by_alias=True, exclude_unset=True) if file.outputs else {}
        outputs[hole] = _sampling(name, hole, base | _sampling_options(options) | own)
    return outputs


def _sampling_options(options: FunctionOptions) -> dict[str, Any]:
    return {option: value for option, value in options.items() if option in SamplingOptions.__annotations__}


def _sampling(function: str, hole: str, options: Mapping[str, Any]) -> OutputBody:
    plain = {option: list(value) if isinstance(value, tuple) else value for option, value in options.items()}
    return _checked(OutputBody, f"function {function}, output {hole!r}", plain)


def _checked(model: type[M], place: str, fields: Mapping[str, Any]) -> M:
    try:
        return check_body(model, fields)
    except BodyError as error:
        raise FunctionError(f"{place}: {error}") from None
