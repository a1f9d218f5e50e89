"""Workloads in files: one program a line, as JSON.

    {"id": "p1", "kind": "map-reduce", "at_s": 0.5, "calls": [
        {"id": "a", "own_tokens": 6000, "output_tokens": 250},
        {"id": "b", "own_tokens": 200, "output_tokens": 400, "reads": ["a"]}]}

The fields are those of `ProgramShape` and `CallShape`; all but ids and lengths may be left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from parrot_server.errors import SetupError
from parrot_server.sim.workload import CallShape, ProgramShape

Tokens = Annotated[int, Field(ge=0, le=10**9)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _Call(_Line):
    id: str
    own_tokens: Tokens
    output_tokens: Annotated[int, Field(ge=1, le=10**9)]
    max_tokens: Tokens = 0
    function: str = "call"
    heads: list[tuple[str, Tokens]] = []
    extends: str = ""
    reads: list[str] = []
    stall_s: Seconds = 0.0
    criterion: Literal["latency", "throughput"] | None = None
    prefilled: bool = False


class _Program(_Line):
    id: str
    calls: Annotated[list[_Call], Field(min_length=1)]
    kind: str = "program"
    at_s: Seconds = 0.0
    tenant: str = ""
    priority: Annotated[float, Field(gt=0)] = 1.0
    deadline_s: Seconds | None = None
    live: bool = False


def read_trace(path: Path) -> list[ProgramShape]:
    """Read a workload. Raises SetupError with the line at fault."""
    programs: dict[str, ProgramShape] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SetupError(f"{path} is not UTF-8 (byte {error.start})") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            program = _program(line, f"{path}, line {number}")
            if program.id in programs:
                raise SetupError(f"{path}, line {number}: there is a program {program.id!r} already")
            programs[program.id] = program
    if not programs:
        raise SetupError(f"{path} holds no programs")
    return list(programs.values())


def _program(line: str, place: str) -> ProgramShape:
    try:
        said = _Program.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the line"
        raise SetupError(f"{place}: {where}: {first['msg'].lower()}") from None
    calls: dict[str, CallShape] = {}
    for call in said.calls:
        shape = CallShape(**{**dict(call), "heads": tuple(call.heads), "reads": tuple(call.reads)})
        for name in shape.waits_for:
            if name not in calls:
                raise SetupError(f"{place}: call {call.id!r} waits for {name!r}, which is not said before it")
        if call.id in calls:
            raise SetupError(f"{place}: there are two calls {call.id!r}")
        if not (shape.own_tokens or shape.waits_for or shape.heads):
            raise SetupError(f"{place}: call {call.id!r} has no prompt")
        calls[call.id] = shape
    return ProgramShape(**{**dict(said), "calls": tuple(calls.values())})


def trace_lines(programs: Iterable[ProgramShape]) -> Iterator[str]:
    """A workload as lines of such a file; what says nothing new is left out."""
    for program in programs:
        line = {name: getattr(program, name) for name in _Program.model_fields if name != "calls"}
        line = {name: value for name, value in line.items() if value != _Program.model_fields[name].default}
        calls = [
            {name: value for name, value in asdict(call).items() if value != _default(name)} for call in program.calls
        ]
        yield json.dumps({**line, "calls": calls})


def _default(name: str) -> object:
    return next((field.default for field in fields(CallShape) if field.name == name), None)
