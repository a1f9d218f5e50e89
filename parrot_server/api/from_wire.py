"""From what clients send to the core's nouns: names become ids, texts become values, functions are parsed.

Nothing here reads or changes the server's state, so large bodies are mapped in a thread.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from parrot_sdk import wire
from parrot_sdk.errors import TemplateError
from parrot_server.core.cost import estimate_tokens
from parrot_server.core.events import CallsAdded, CriteriaSet, Submitted, VariableSet
from parrot_server.core.model import (
    Binding,
    Budget,
    CallSpec,
    Criterion,
    FunctionSpec,
    Op,
    Ref,
    Sampling,
    Transform,
    Value,
)
from parrot_server.errors import Refused


class Mapper:
    """Maps the bodies of requests.

    Args:
        value_bytes: the largest value, in UTF-8.
        functions: ids of functions that are known already, by their names.
        usable: ids that calls may name.
    """

    def __init__(self, value_bytes: int, functions: Mapping[str, str], usable: Collection[str]) -> None:
        self._value_bytes = value_bytes
        self._functions = dict(functions)
        self._usable = set(usable)

    def submitted(self, body: wire.ProgramBody, program: str, tenant: str) -> Submitted:
        """A program."""
        return Submitted(
            program=program,
            name=body.name or "",
            tenant=tenant,
            **self._graph(body),
            priority=body.priority,
            deadline_s=body.deadline_s,
            budget=_budget(body.budget),
            fail_fast=body.failure == "fail_fast",
            closed=body.closed,
        )

    def calls_added(self, body: wire.CallsBody, program: str) -> CallsAdded:
        """More calls for a program."""
        return CallsAdded(program=program, **self._graph(body), close=body.close)

    def variable_set(self, body: wire.VariableBody, program: str, name: str) -> VariableSet:
        """A value for an open variable."""
        return VariableSet(program, name, self._value(body.value, at="value"))

    def criteria_set(self, body: wire.PatchBody, program: str) -> CriteriaSet:
        """What the user wants now."""
        return CriteriaSet(
            program=program,
            criteria=_criteria(body.criteria),
            priority=body.priority,
            deadline_s=body.deadline_s,
            budget=_budget(body.budget) if body.budget else None,
        )

    def _graph(self, body: wire.ProgramBody | wire.CallsBody) -> dict[str, Any]:
        """What a submit and an addition have in common."""
        specs = []
        for name, function in body.functions.items():
            specs.append(function_spec(name, function, at=f"functions.{name}."))
            self._functions[name] = specs[-1].id
            self._usable.add(specs[-1].id)
        return {
            "functions": tuple(specs),
            "variables": tuple(self._variable(name, value) for name, value in body.variables.items()),
            "calls": tuple(self._call(call, at=f"calls[{index}]") for index, call in enumerate(body.calls)),
            "criteria": _criteria(body.criteria),
        }

    def _variable(self, name: str, value: str | list[str] | None) -> tuple[str, Value | None]:
        return name, None if value is None else self._value(value, at=f"variables.{name}")

    def _call(self, body: wire.CallBody, at: str) -> CallSpec:
        return CallSpec(
            id=body.id,
            op=Op.GENERATE if body.function else Op.TOOL if body.tool else Op.TRANSFORM,
            inputs=tuple((hole, self._binding(b, f"{at}.inputs.{hole}")) for hole, b in body.inputs.items()),
            outputs=tuple(body.outputs.items()),
            function=self._function(body, at) if body.function else "",
            tool=body.tool or "",
            transform=_transform(body.transform) if body.transform else None,
            sampling=tuple((hole, sampling(output)) for hole, output in body.sampling.items()),
            model=body.model or "",
            after=tuple(body.after),
            each=body.each or "",
            race=body.race or "",
            attempts=body.retry.attempts if body.retry else None,
            fallback=self._fallback(body, at),
            timeout_s=body.timeout_s,
            expect_return_s=body.expect_return_s,
        )

    def _function(self, body: wire.CallBody, at: str) -> str:
        """The id of a call's function. One that is another tenant's is as unknown as one that is nobody's."""
        name = body.function or ""
        found = self._functions.get(name, name)
        if found not in self._usable:
            message = f"call {body.id!r} uses the function {name!r}, which is not registered"
            raise Refused("unknown_function", message, call=body.id, at=f"{at}.function")
        return found

    def _binding(self, binding: wire.Binding, at: str) -> Binding:
        if isinstance(binding, list):
            return tuple(self._one_binding(part, f"{at}[{index}]") for index, part in enumerate(binding))
        return self._one_binding(binding, at)

    def _one_binding(self, binding: str | wire.VariableRef, at: str) -> Value | Ref:
        return Ref(binding.var) if isinstance(binding, wire.VariableRef) else self._value(binding, at)

    def _fallback(self, body: wire.CallBody, at: str) -> tuple[tuple[str, Value], ...]:
        fallback = body.fallback
        if fallback is None:
            return ()
        if isinstance(fallback, str):
            if len(body.outputs) != 1:
                message = f'call {body.id!r} has {len(body.outputs)} outputs: say {{"hole": "text"}} for its fallback'
                raise Refused("bad_value", message, call=body.id, at=f"{at}.fallback")
            fallback = dict.fromkeys(body.outputs, fallback)
        return tuple((hole, self._value(text, f"{at}.fallback")) for hole, text in fallback.items())

    def _value(self, value: str | list[str], at: str) -> Value:
        if isinstance(value, str):
            self._check_size([value], at)
            return Value(value, estimate_tokens(value))
        self._check_size(value, at)
        tokens = sum(map(estimate_tokens, value))
        return Value(json.dumps(value, ensure_ascii=False), tokens, tuple(value))

    def _check_size(self, texts: Iterable[str], at: str) -> None:
        size = sum(len(text) if text.isascii() else len(text.encode()) for text in texts)
        if size > self._value_bytes:
            message = f"{at}: a value of {size} bytes; value_bytes allows {self._value_bytes}"
            raise Refused("limit_exceeded", message, at=at)


def function_spec(name: str, body: wire.FunctionBody, at: str = "") -> FunctionSpec:
    """A function, its template parsed once to see that it is sound. Raises Refused, with line and column."""
    try:
        body.parse()
    except TemplateError as error:
        where = f"function {name!r}: " if name else ""
        raise Refused("template_error", f"{where}{error}", at=f"{at}template") from error
    return FunctionSpec(
        id=body.id,
        name=name,
        text=body.template,
        outputs=tuple(sorted((hole, sampling(output)) for hole, output in body.outputs.items())),
        joins=tuple(sorted((hole, given.join) for hole, given in body.inputs.items())),
        format=body.format,
    )


def sampling(body: wire.OutputBody) -> Sampling:
    """How one output is generated."""
    schema = body.json_schema
    return Sampling(
        max_tokens=body.max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        stop=tuple(body.stop),
        keep_stop=body.keep_stop,
        seed=body.seed,
        ignore_eos=body.ignore_eos,
        schema=None if schema is None else json.dumps(schema, sort_keys=True, separators=(",", ":")),
        choices=None if body.choices is None else tuple(body.choices),
        allow_empty=body.allow_empty,
    )


def _transform(body: wire.TransformBody) -> Transform:
    return Transform("items") if body.field is None else Transform("field", body.field)


def _criteria(criteria: Mapping[str, wire.Criterion]) -> tuple[tuple[str, Criterion], ...]:
    return tuple((name, _criterion(criterion)) for name, criterion in criteria.items())


def _criterion(criterion: wire.Criterion) -> Criterion:
    if isinstance(criterion, wire.DeadlineBody):
        return Criterion("deadline", criterion.deadline_s)
    return Criterion("latency" if criterion == "latency" else "throughput")


def _budget(body: wire.BudgetBody) -> Budget:
    return Budget(body.total_tokens, body.calls, body.wall_s)
