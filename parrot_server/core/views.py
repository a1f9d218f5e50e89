"""What others may see of the scheduler's state: frozen snapshots, made when asked for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from parrot_server.core.model import CallState, Failure, Objective, Op, ProgramState, StepKey, Usage, Value


class VariableState(StrEnum):
    """Where a variable stands."""

    OPEN = "open"  # declared; a PUT or a later call will set it
    PENDING = "pending"  # a call will set it
    READY = "ready"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Timing:
    """Moments in the core's seconds; None: not yet. From `sent_s` on they are those of the last attempt."""

    submitted_s: float
    ready_s: float | None = None
    sent_s: float | None = None
    started_s: float | None = None
    first_token_s: float | None = None
    ended_s: float | None = None


@dataclass(frozen=True, slots=True)
class VariableView:
    """One variable. `producer` is the call that sets it."""

    name: str
    state: VariableState
    outcome: Value | Failure | None
    producer: str | None
    is_sink: bool
    attempt: int
    usage: Usage | None
    timing: Timing | None


@dataclass(frozen=True, slots=True)
class NodeView:
    """One step of one call. `node` is the call's id, with `/hole` behind it where the call has several outputs."""

    key: StepKey
    node: str
    op: Op
    function: str
    state: CallState
    objective: Objective
    group: str | None
    path_s: float  # predicted seconds from here to the end of the program, this step included
    attempt: int
    engine: str | None
    usage: Usage
    timing: Timing
    why: str  # one sentence: what it waits for, or why it has this objective and engine
    failure: Failure | None


@dataclass(frozen=True, slots=True)
class GraphView:
    """A program's steps in the order of submission, and its edges as pairs of node names."""

    nodes: tuple[NodeView, ...]
    edges: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ProgramView:
    """One program. `usage` sums all attempts that ended well; `wasted` those that did not."""

    id: str
    name: str
    tenant: str
    state: ProgramState
    closed: bool
    at_risk: bool
    priority: float
    submitted_s: float
    ended_s: float | None
    calls: tuple[tuple[CallState, int], ...]
    variables: tuple[str, ...]
    sinks: tuple[str, ...]
    usage: Usage
    wasted: Usage
    attained_token_s: float
    alone_s: float | None  # predicted or measured seconds that it needs by itself
    slowdown: float | None


@dataclass(frozen=True, slots=True)
class EngineView:
    """One engine as the scheduler sees it."""

    id: str
    kind: str
    models: tuple[str, ...]
    up: bool
    breaker: str  # closed, open, half-open
    running: int
    paused: int
    resident_tokens: int
    kv_tokens: int
    max_running: int
    context_tokens: int
    abilities: tuple[str, ...]
    pinned_prefixes: int
