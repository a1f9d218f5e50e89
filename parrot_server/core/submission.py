"""What a client wants to add to a program, checked whole before anything of it is taken.

`draft` is pure: it either raises Refused, which names the culprit, or returns all that adding the calls needs to know.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import networkx as nx

from parrot_sdk.template import DEFAULT_JOIN, parse
from parrot_server.core.cost import estimate_bytes
from parrot_server.core.events import CallsAdded, Submitted
from parrot_server.core.model import Binding, Budget, CallSpec, Criterion, FunctionSpec, Op, Ref, Sampling, Value
from parrot_server.core.program import Function, Program
from parrot_server.core.settings import SchedulerSettings
from parrot_server.errors import Refused


@dataclass(frozen=True, slots=True)
class CallDraft:
    """One call, checked: its function, one (hole, variable, sampling) an output, and the variables that it reads."""

    call: CallSpec
    function: Function | None
    outputs: tuple[tuple[str, str, Sampling], ...]
    reads: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Draft:
    """What one submit adds; `value_bytes` is about how much memory its values take."""

    functions: tuple[Function, ...]
    variables: tuple[tuple[str, Value | None], ...]
    calls: tuple[CallDraft, ...]
    criteria: tuple[tuple[str, Criterion], ...]
    value_bytes: int


def compile_function(spec: FunctionSpec) -> Function:
    """Parse a function's template. Raises TemplateError."""
    sampling = dict(spec.outputs)
    template = parse(spec.text, sampling, format=spec.format)
    joins = dict.fromkeys(template.inputs, DEFAULT_JOIN) | dict(spec.joins)
    return Function(spec, template, sampling, joins)


def refs(binding: Binding) -> Iterator[str]:
    """Names of the variables in a binding."""
    for part in binding if isinstance(binding, tuple) else (binding,):
        if isinstance(part, Ref):
            yield part.name


def draft(
    event: Submitted | CallsAdded,
    program: Program | None,
    registered: Mapping[str, Function],
    settings: SchedulerSettings,
) -> Draft:
    """Check what a submit adds to a program (None: a new one). Raises Refused."""
    value_bytes = _check_size(event, program, settings)
    compiled = tuple(compile_function(spec) for spec in event.functions if spec.id not in registered)
    known = {**registered, **{function.spec.id: function for function in compiled}}
    _check_variables(event, program)
    calls = tuple(_draft_call(call, known, at=f"calls[{i}]") for i, call in enumerate(event.calls))
    names = _Names(event, program, calls)
    for i, item in enumerate(calls):
        names.check_outputs(item, at=f"calls[{i}]")
    for i, item in enumerate(calls):
        names.check_inputs(item, at=f"calls[{i}]")
    for name, _ in event.criteria:
        if not names.is_known(name):
            raise Refused("unknown_variable", f"criteria names the variable {name!r}, which the program does not have")
    _check_graph(calls, program, names, settings.depth)
    return Draft(compiled, event.variables, calls, event.criteria, value_bytes)


def _check_size(event: Submitted | CallsAdded, program: Program | None, settings: SchedulerSettings) -> int:
    total = len(event.calls) + (len(program.calls) if program else 0)
    budget = event.budget if isinstance(event, Submitted) else program.budget if program else Budget()
    refused = too_many_calls(total, budget, settings)
    if refused:
        raise refused
    value_bytes = estimate_bytes(_values(event))
    refused = too_many_bytes(value_bytes + (program.value_bytes if program else 0), settings)
    if refused:
        raise refused
    return value_bytes


def _values(event: Submitted | CallsAdded) -> Iterator[Value]:
    """The values in a submit, in variables and in calls."""
    yield from (value for _, value in event.variables if value is not None)
    for call in event.calls:
        for _, binding in call.inputs:
            parts = binding if isinstance(binding, tuple) else (binding,)
            yield from (part for part in parts if isinstance(part, Value))
        yield from (value for _, value in call.fallback)


def too_many_bytes(total: int, settings: SchedulerSettings) -> Refused | None:
    """What is wrong with values of so many bytes in one program, if anything is."""
    if total <= settings.program_bytes:
        return None
    message = f"the program's values would take about {total} bytes; program_bytes allows {settings.program_bytes}"
    return Refused("limit_exceeded", message)


def too_many_calls(total: int, budget: Budget, settings: SchedulerSettings) -> Refused | None:
    """What is wrong with so many calls in one program, if anything is."""
    if total > settings.calls_per_program:
        message = f"the program would have {total} calls; calls_per_program allows {settings.calls_per_program}"
        return Refused("limit_exceeded", message)
    if budget.calls is not None and total > budget.calls:
        return Refused("budget_exceeded", f"the program would have {total} calls; its budget allows {budget.calls}")
    return None


def _check_variables(event: Submitted | CallsAdded, program: Program | None) -> None:
    for name, _ in event.variables:
        if program and name in program.variables:
            raise Refused("duplicate_variable", f"the program has a variable {name!r} already", at=f"variables.{name}")


def _draft_call(call: CallSpec, known: Mapping[str, Function], at: str) -> CallDraft:
    if call.op not in (Op.GENERATE, Op.TRANSFORM):
        raise Refused("not_served", f"call {call.id!r}: this server serves no {call.op} calls", call=call.id, at=at)
    function = None
    if call.op is Op.GENERATE:
        function = known.get(call.function)
        if function is None:
            message = f"call {call.id!r} uses the function {call.function!r}, which is not registered"
            raise Refused("unknown_function", message, call=call.id, at=f"{at}.function")
    outputs = tuple(_outputs(call, function, at))
    _check_holes(call, function, at)
    reads = tuple(dict.fromkeys(name for _, binding in call.inputs for name in refs(binding)))
    return CallDraft(call, function, outputs, reads)


def _outputs(call: CallSpec, function: Function | None, at: str) -> Iterator[tuple[str, str, Sampling]]:
    """The call's outputs in the order in which the template writes them."""
    bound = dict(call.outputs)
    holes = function.template.outputs if function else tuple(bound)
    label = function.spec.name if function else call.op
    for hole in bound:  # first, as a misspelt hole is missing under its right name too
        if hole not in holes:
            message = f"call {call.id!r}: {label!r} has no output {hole!r}"
            raise Refused("unknown_hole", message, call=call.id, at=f"{at}.outputs.{hole}")
    for hole in holes:
        if hole not in bound:
            message = f"call {call.id!r}: the output {hole!r} of {label!r} is bound to no variable"
            raise Refused("missing_hole", message, call=call.id, at=f"{at}.outputs")
    if not function and len(holes) != 1:
        message = f"call {call.id!r}: a transform has exactly one output"
        raise Refused("missing_hole", message, call=call.id, at=f"{at}.outputs")
    overrides = dict(call.sampling)
    for hole in [*overrides, *dict(call.fallback)]:
        if hole not in holes:
            message = f"call {call.id!r}: {label!r} has no output {hole!r}"
            raise Refused("unknown_hole", message, call=call.id, at=at)
    for hole in holes:
        yield hole, bound[hole], overrides.get(hole) or (function.sampling[hole] if function else Sampling())


def _check_holes(call: CallSpec, function: Function | None, at: str) -> None:
    bound = dict(call.inputs)
    if function:
        for hole in bound:  # first, as above
            if hole not in function.template.inputs:
                message = f"call {call.id!r}: {function.spec.name!r} has no input hole {hole!r}"
                raise Refused("unknown_hole", message, call=call.id, at=f"{at}.inputs.{hole}")
        for hole in function.template.inputs:
            if hole not in bound:
                message = f"call {call.id!r}: the hole {hole!r} of {function.spec.name!r} is bound to nothing"
                raise Refused("missing_hole", message, call=call.id, at=f"{at}.inputs")
    elif len(bound) != 1:
        raise Refused("missing_hole", f"call {call.id!r}: a transform has exactly one input", call=call.id, at=at)
    if call.each and call.each not in bound:
        message = f"call {call.id!r}: `each` names the hole {call.each!r}, which the call does not bind"
        raise Refused("unknown_hole", message, call=call.id, at=f"{at}.each")
    if call.each and call.race:
        raise Refused("invalid", f"call {call.id!r}: `each` and `race` do not go together", call=call.id, at=at)


class _Names:
    """The calls and variables of a program as they would be after the submit."""

    def __init__(self, event: Submitted | CallsAdded, program: Program | None, calls: tuple[CallDraft, ...]) -> None:
        self.program = program
        self.given = dict(event.variables)
        self.races: dict[str, str] = {}  # variable, the race that sets it
        self.produced: dict[str, list[str]] = {}  # variable, its new producers
        self.calls: set[str] = set()
        for item in calls:
            if item.call.id in self.calls or (program and item.call.id in program.calls):
                raise Refused("duplicate_call", f"there are two calls {item.call.id!r}", call=item.call.id)
            self.calls.add(item.call.id)

    def is_known(self, name: str) -> bool:
        return name in self.given or name in self.produced or bool(self.program and name in self.program.variables)

    def check_outputs(self, item: CallDraft, at: str) -> None:
        """An output goes to a variable that is new, or open and without a producer, or shared in one race."""
        call = item.call
        for hole, name, _ in item.outputs:
            taken = self._taken_by(name)
            if taken and not (call.race and self.races.get(name) == call.race):
                message = f"call {call.id!r} binds its output {hole!r} to the variable {name!r}, which {taken} sets"
                raise Refused("bound_twice", message, call=call.id, at=f"{at}.outputs.{hole}")
            self.produced.setdefault(name, []).append(call.id)
            if call.race:
                self.races[name] = call.race

    def _taken_by(self, name: str) -> str:
        if name in self.produced:
            return f"call {self.produced[name][0]!r}"
        if self.given.get(name) is not None:
            return "the submit itself"
        variable = self.program.variables.get(name) if self.program else None
        if variable and variable.producers:
            return f"call {variable.producers[0].call.id!r}"
        return "a client already" if variable and variable.outcome is not None else ""

    def check_inputs(self, item: CallDraft, at: str) -> None:
        for name in item.reads:
            if not self.is_known(name):
                message = f"call {item.call.id!r} reads the variable {name!r}, which is neither set, open nor produced"
                raise Refused("unknown_variable", message, call=item.call.id, at=f"{at}.inputs")
        for other in item.call.after:
            if other not in self.calls and not (self.program and other in self.program.calls):
                message = f"call {item.call.id!r} comes after the call {other!r}, which is not there"
                raise Refused("unknown_call", message, call=item.call.id, at=f"{at}.after")

    def fills_open_variable(self) -> bool:
        """Whether a new call sets a variable that calls of the program wait for already."""
        return bool(self.program and any(name in self.program.variables for name in self.produced))


def _check_graph(calls: tuple[CallDraft, ...], program: Program | None, names: _Names, depth: int) -> None:
    """Refuse cycles and paths that are too long, iteratively, over the new calls and those of the program that can wait for them."""
    waits = {item.call.id: (item.reads, item.call.after) for item in calls}
    setters = {name: list(by) for name, by in names.produced.items()}
    if program and names.fills_open_variable():
        for call_id, steps in program.calls.items():
            sets = {step.variable.name for step in steps}
            waits[call_id] = (tuple(name for step in steps for name in step.waits if name not in sets), ())
            for name in sets:
                setters.setdefault(name, []).append(call_id)
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(waits)
    for call_id, (reads, after) in waits.items():
        graph.add_edges_from((setter, call_id) for name in reads for setter in setters.get(name, ()))
        graph.add_edges_from((other, call_id) for other in after if other in waits)
    length = {call_id: _depth_before(program, *waits[call_id]) + 1 for call_id in waits}
    try:
        for call_id in nx.topological_sort(graph):
            before = max((length[parent] for parent in graph.pred[call_id]), default=0)
            length[call_id] = max(length[call_id], before + 1)
    except nx.NetworkXUnfeasible:
        cycle = [parent for parent, _ in nx.find_cycle(graph)]
        shown = " -> ".join([*cycle[:8], "..."] if len(cycle) > 8 else [*cycle, cycle[0]])
        raise Refused("cycle", f"these calls wait for each other: {shown}", call=cycle[0], at="calls") from None
    longest = max(length.values(), default=0)
    if longest > depth:
        raise Refused(
            "limit_exceeded", f"the longest path would have {longest} calls; depth allows {depth}", at="calls"
        )


def _depth_before(program: Program | None, reads: Iterable[str], after: Iterable[str]) -> int:
    """Calls on the longest path of the program that ends in what a call waits for."""
    if program is None:
        return 0
    variables = (program.variables[name] for name in reads if name in program.variables)
    producers = (step for variable in variables for step in variable.producers)
    earlier = (step for name in after for step in program.calls.get(name, ()))
    return max((step.depth for step in itertools.chain(producers, earlier)), default=0)


def element_call(call: CallSpec, index: int, element: Value) -> CallSpec:
    """The call that an `each` call makes for one element of its list."""
    inputs = tuple((hole, element if hole == call.each else binding) for hole, binding in call.inputs)
    outputs = tuple((hole, f"{name}[{index}]") for hole, name in call.outputs)
    return replace(call, id=f"{call.id}[{index}]", inputs=inputs, outputs=outputs, each="", after=())
