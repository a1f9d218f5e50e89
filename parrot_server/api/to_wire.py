"""From the core's views to what the server answers."""

from __future__ import annotations

from parrot_sdk import template
from parrot_sdk.wire import (
    EdgeReply,
    ErrorReply,
    FunctionReply,
    GraphReply,
    NodeReply,
    ProgramReply,
    ProgramTimingReply,
    TimingReply,
    UsageReply,
    VariableReply,
)
from parrot_server.core.model import Failure, FunctionSpec, Usage, Value
from parrot_server.core.views import GraphView, NodeView, ProgramView, Timing, VariableView


def text_of(value: Value) -> str | list[str]:
    """A value as clients see it."""
    return value.text if value.items is None else list(value.items)


def function(spec: FunctionSpec, parsed: template.Template) -> FunctionReply:
    """A function with its segments."""
    return FunctionReply(
        id=spec.id,
        name=spec.name,
        segments=[_segment(segment) for segment in parsed.segments],
        inputs=list(parsed.inputs),
        outputs=list(parsed.outputs),
        format=spec.format,
    )


def _segment(segment: template.Segment) -> dict[str, str]:
    match segment:
        case template.Text(text):
            return {"text": text}
        case template.Input(name):
            return {"input": name}
        case template.Output(name):
            return {"output": name}
        case template.Role(role):
            return {"role": role}


def program(view: ProgramView, now_s: float) -> ProgramReply:
    """A program's state."""
    path = f"/v1/programs/{view.id}"
    return ProgramReply(
        id=view.id,
        state=view.state.value,
        name=view.name,
        at_risk=view.at_risk,
        calls={state.value: count for state, count in view.calls},
        variables=list(view.variables),
        usage=usage(view.usage),
        timing=ProgramTimingReply(
            wall_s=(now_s if view.ended_s is None else view.ended_s) - view.submitted_s, alone_s=view.alone_s
        ),
        slowdown=view.slowdown,
        links={
            "self": path,
            "graph": f"{path}/graph",
            "events": f"{path}/events",
            "trace": f"{path}/trace",
            "variable": f"{path}/variables/{{name}}",
        },
    )


def variable(view: VariableView) -> VariableReply:
    """A variable, with its value or its error."""
    outcome = view.outcome
    return VariableReply(
        name=view.name,
        state=view.state.value,
        value=text_of(outcome) if isinstance(outcome, Value) else None,
        error=error(outcome) if isinstance(outcome, Failure) else None,
        usage=usage(view.usage) if view.usage else None,
        timing=timing(view.timing) if view.timing else None,
    )


def graph(view: GraphView) -> GraphReply:
    """A program's steps and edges."""
    edges = [EdgeReply.model_validate({"from": source, "to": target}) for source, target in view.edges]
    return GraphReply(nodes=[_node(node) for node in view.nodes], edges=edges)


def _node(view: NodeView) -> NodeReply:
    return NodeReply(
        id=view.node,
        call=view.key.call,
        op=view.op.value,
        function=view.function,
        state=view.state.value,
        objective=view.objective.value,
        group=view.group,
        path_s=view.path_s,
        attempt=view.attempt,
        engine=view.engine,
        usage=usage(view.usage),
        timing=timing(view.timing),
        why=view.why,
        error=error(view.failure) if view.failure else None,
    )


def usage(used: Usage) -> UsageReply:
    """Tokens."""
    return UsageReply(
        prompt_tokens=used.prompt_tokens,
        cached_tokens=used.cached_tokens,
        output_tokens=used.output_tokens,
        estimated=used.estimated,
    )


def error(failure: Failure) -> ErrorReply:
    """Why a variable has no value."""
    return ErrorReply(type=failure.type, message=failure.message, call=failure.call, retryable=failure.retryable)


def timing(view: Timing) -> TimingReply:
    """Moments, from the submission of the program on."""
    ready_s, started_s, ended_s = view.ready_s, view.started_s, view.ended_s

    def since(moment_s: float | None) -> float | None:
        return None if moment_s is None else moment_s - view.submitted_s

    return TimingReply(
        submitted_s=0.0,
        ready_s=since(ready_s),
        sent_s=since(view.sent_s),
        started_s=since(started_s),
        first_token_s=since(view.first_token_s),
        ended_s=since(ended_s),
        queue_s=None if ready_s is None or started_s is None else started_s - ready_s,
        wall_s=None if ready_s is None or ended_s is None else ended_s - ready_s,
    )
