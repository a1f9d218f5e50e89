"""Growing a program's graph: one vertex a step, one edge from each producer of a variable to each step that waits for it.

What is inserted has been checked by `submission.draft`, so nothing here can fail.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from parrot_server.core.cost import estimate_bytes
from parrot_server.core.model import CallSpec, Failure, Op, Sampling, StepKey, Value
from parrot_server.core.program import Function, Program, Step, Variable
from parrot_server.core.submission import CallDraft, Draft, element_call


def insert(program: Program, draft: Draft, sequence: Iterator[int]) -> list[Step]:
    """Add what was drafted. Returns the new steps, in the order of the submit."""
    program.value_bytes += draft.value_bytes
    for name, value in draft.variables:
        program.variables[name] = Variable(name, outcome=value)
    steps = [step for item in draft.calls for step in _steps(program, item, sequence)]
    for name, criterion in draft.criteria:
        program.variables[name].criterion = criterion
    for item in draft.calls:
        for name in item.reads:
            program.variables[name].is_sink = False
    _connect(program, steps)
    return steps


def expand(program: Program, step: Step, elements: list[Value], sequence: Iterator[int]) -> list[Step]:
    """Spread an `each` step: one call an element, whose outputs the step then collects. Returns the new steps, if any.

    The steps of one `each` call, one an output, share the element calls: the first to be spread makes them.
    """
    step.expanded = True
    made: list[Step] = []
    for index, element in enumerate(elements):
        call = element_call(step.call, index, element)
        if call.id not in program.calls:
            item = CallDraft(call, step.function, tuple(_element_outputs(step, call)), ())
            made += _steps(program, item, sequence)
            program.value_bytes += estimate_bytes([element])
    _connect(program, made)
    waits = tuple(f"{step.variable.name}[{index}]" for index in range(len(elements)))
    step.waits = waits
    for name in waits:
        program.variables[name].is_sink = False
    _wait(program, step)
    return made


def _element_outputs(step: Step, call: CallSpec) -> Iterator[tuple[str, str, Sampling]]:
    siblings = {sibling.output: sibling.sampling for sibling in step.program.calls[step.call.id]}
    for hole, name in call.outputs:
        yield hole, name, siblings[hole]


def _steps(program: Program, item: CallDraft, sequence: Iterator[int]) -> Iterator[Step]:
    """The chain of steps of one call, with their variables."""
    steps: list[Step] = []
    inputs = dict(item.call.inputs)
    for index, (hole, name, sampling) in enumerate(item.outputs):
        variable = program.variables.setdefault(name, Variable(name))
        step = Step(
            key=StepKey(program.id, item.call.id, index),
            seq=next(sequence),
            program=program,
            call=item.call,
            function=item.function,
            output=hole,
            variable=variable,
            sampling=sampling,
            waits=item.reads,
            inputs=inputs,
            needs=tuple(_needs(item.function, hole, sampling)),
        )
        variable.producers.append(step)
        program.steps[item.call.id, index] = step
        program.graph.add_node(step)
        program.open_steps += 1
        steps.append(step)
    program.calls[item.call.id] = steps
    yield from steps


def _needs(function: Function | None, hole: str, sampling: Sampling) -> Iterator[str]:
    """What an engine must be able to for one output of a function."""
    if function is not None and function.chat:
        yield "chat"
        if function.template.continues(hole):
            yield "continues"
    if sampling.schema is not None or sampling.choices is not None:
        yield "schemas"


def _connect(program: Program, steps: list[Step]) -> None:
    """Say for each new step what it waits for: what it reads, the call's earlier outputs, and the calls that it comes after."""
    for step in steps:
        earlier: Iterator[str] = iter(())
        if step.call.op is Op.GENERATE and not step.call.each:
            earlier = (s.variable.name for s in program.calls[step.call.id][: step.key.step])
        after = (s.variable.name for other in step.call.after for s in program.calls[other])
        step.waits = tuple(dict.fromkeys(itertools.chain(step.waits, earlier, after)))
        _wait(program, step)
        for reader in step.variable.waiters:  # an open variable has found its producer
            program.graph.add_edge(step, reader)
        _deepen(program, step)


def _deepen(program: Program, step: Step) -> None:
    """Whatever is below a step lies deeper than it."""
    todo = [step]
    while todo:
        above = todo.pop()
        for below in program.children(above):
            if below.depth <= above.depth:
                below.depth = above.depth + 1
                todo.append(below)


def _wait(program: Program, step: Step) -> None:
    missing = 0
    for name in step.waits:
        variable = program.variables[name]
        for producer in variable.producers:
            program.graph.add_edge(producer, step)
            step.depth = max(step.depth, producer.depth + 1)
        if not isinstance(variable.outcome, Value):
            missing += 1
            variable.waiters.append(step)
    step.missing = missing


def first_failure(program: Program, step: Step) -> Failure | None:
    """The failure of a variable that a step waits for, if one has failed."""
    for name in step.waits:
        outcome = program.variables[name].outcome
        if isinstance(outcome, Failure):
            return outcome
    return None


def function_of(step: Step) -> Function:
    """The function of a generating step."""
    assert step.function is not None, f"{step.key} generates without a function"
    return step.function
