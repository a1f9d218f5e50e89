"""Views of the scheduler's state, made when asked for."""

from __future__ import annotations

from collections import Counter

from parrot_server.core.cost import alone_s
from parrot_server.core.fleet import Engine
from parrot_server.core.model import ENDED, CallState, CostModel, Failure, Objective, Value
from parrot_server.core.program import Program, Step, Variable
from parrot_server.core.state import State
from parrot_server.core.views import EngineView, GraphView, NodeView, ProgramView, Timing, VariableState, VariableView


def program_view(state: State, program: Program) -> ProgramView:
    """One program."""
    counts = Counter(step.state for step in program.steps.values())
    alone = _alone_s(program, state.cost()) if program.ended else None
    slowdown = None
    if alone and program.ended_s is not None:
        slowdown = (program.ended_s - program.submitted_s) / alone
    return ProgramView(
        id=program.id,
        name=program.name,
        tenant=program.tenant,
        state=program.state,
        closed=program.closed,
        at_risk=_at_risk(state, program),
        priority=program.priority,
        submitted_s=program.submitted_s,
        ended_s=program.ended_s,
        calls=tuple((call_state, counts[call_state]) for call_state in CallState if counts[call_state]),
        variables=tuple(program.variables),
        sinks=tuple(variable.name for variable in program.variables.values() if variable.is_sink),
        usage=program.usage,
        wasted=program.wasted,
        attained_token_s=program.attained_token_s,
        alone_s=alone,
        slowdown=slowdown,
    )


def _alone_s(program: Program, cost: CostModel) -> float:
    """The longest path of the program in seconds, each step at the speed of an engine to itself."""
    paths: dict[Step, float] = {}
    for step in sorted(program.steps.values(), key=lambda step: step.depth):
        before = max((paths[parent] for parent in program.parents(step) if parent in paths), default=0.0)
        fresh = step.usage.prompt_tokens - step.usage.cached_tokens
        paths[step] = before + (alone_s(cost, fresh, step.usage.output_tokens) if step.usage.output_tokens else 0.0)
    return max(paths.values(), default=0.0)


def _at_risk(state: State, program: Program) -> bool:
    """Whether a deadline cannot be met any more, as far as can be predicted."""
    if program.ended:
        return False
    return any(step.due_s is not None and state.now_s + step.path_s > step.due_s for step in program.open())


def variable_view(program: Program, variable: Variable) -> VariableView:
    """One variable."""
    producer = variable.producers[0] if variable.producers else None
    for candidate in variable.producers:
        if candidate.state is CallState.DONE:
            producer = candidate
    return VariableView(
        name=variable.name,
        state=_variable_state(variable),
        outcome=variable.outcome,
        producer=producer.call.id if producer else None,
        is_sink=variable.is_sink,
        attempt=producer.attempt if producer else 0,
        usage=producer.usage if producer else None,
        timing=_timing(producer) if producer else None,
    )


def _variable_state(variable: Variable) -> VariableState:
    outcome = variable.outcome
    if outcome is None:
        return VariableState.PENDING if variable.producers else VariableState.OPEN
    if isinstance(outcome, Value):
        return VariableState.READY
    return VariableState.CANCELLED if outcome.type == "cancelled" else VariableState.FAILED


def _timing(step: Step) -> Timing:
    return Timing(
        submitted_s=step.program.submitted_s,
        ready_s=step.ready_s,
        sent_s=step.sent_s,
        started_s=step.started_s,
        first_token_s=step.first_token_s,
        ended_s=step.ended_s,
    )


def graph_view(state: State, program: Program) -> GraphView:
    """All steps of a program and the edges between them."""
    nodes = tuple(_node_view(state, step) for step in program.steps.values())
    edges = tuple((parent.node, child.node) for parent, child in program.graph.edges)
    return GraphView(nodes, edges)


def _node_view(state: State, step: Step) -> NodeView:
    return NodeView(
        key=step.key,
        node=step.node,
        op=step.call.op,
        function=step.function.spec.name if step.function else "",
        state=step.state,
        objective=step.objective,
        group=step.group.name if step.group else None,
        path_s=step.path_s,
        attempt=step.attempt,
        engine=step.engine,
        usage=step.usage,
        timing=_timing(step),
        why=_why(state, step),
        failure=step.failure,
    )


def _why(state: State, step: Step) -> str:
    """One sentence: what it waits for, or why it is treated as it is."""
    if step.state is CallState.WAITING:
        program = step.program
        unset = [name for name in step.waits if not isinstance(program.variables[name].outcome, Value)]
        more = f" and {len(unset) - 3} more" if len(unset) > 3 else ""
        return f"waits for {', '.join(unset[:3])}{more}"
    if isinstance(step.failure, Failure):
        return step.failure.message
    if step.state is CallState.READY:
        return _why_not_sent(state, step)
    if not step.waited_for:
        reason = "batched: nobody waits for what comes of it"
    elif step.objective is Objective.EXPEDITE:
        reason = "expedited: it is on the way to what a user waits for"
    elif step.group:
        reason = f"batched: the join behind {step.group.name} waits for the last of its group"
    else:
        reason = "batched: it has time until its deadline"
    verb = "ran on" if step.state in ENDED else "is on"
    return f"{reason}; {verb} {step.engine}" if step.engine else reason


def _why_not_sent(state: State, step: Step) -> str:
    for engine in state.engines.values():
        for prefix, steps in engine.coming.items():
            if step in steps:
                return f"waits until {engine.spec.id} has computed the prefix {prefix[:12]} that it shares"
    if step not in state.queue:
        return "waits before its next attempt"
    if not any(engine.usable(state.now_s) for engine in state.able(step)):
        return "waits for an engine that serves its model"
    return "queued: no engine has room for it, or better ones come first"


def engine_view(engine: Engine, now_s: float) -> EngineView:
    """One engine."""
    breaker = "closed"
    if engine.open_until_s is not None:
        breaker = "half-open" if now_s >= engine.open_until_s else "open"
    spec = engine.spec
    abilities = ("can_pause", "can_pin", "can_offload", "shares_prefixes", "continues", "chat", "schemas")
    return EngineView(
        id=spec.id,
        kind=spec.kind,
        models=spec.models,
        up=engine.up,
        breaker=breaker,
        running=sum(run.decodes for run in engine.runs.values()),
        paused=sum(run.step.state is CallState.PAUSED for run in engine.runs.values()),
        resident_tokens=int(sum(run.resident_tokens for run in engine.runs.values())),
        kv_tokens=spec.kv_tokens,
        max_running=spec.max_running,
        context_tokens=spec.context_tokens,
        abilities=tuple(name for name in abilities if getattr(spec, name)),
        pinned_prefixes=len(engine.pins),
    )
