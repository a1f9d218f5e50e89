"""A program as the scheduler holds it: variables, steps and the graph between them. Mutable, changed by the core alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import networkx as nx

from parrot_sdk.template import Template
from parrot_server.core.model import (
    ENDED,
    IN_ENGINE,
    NEXT_STATES,
    Binding,
    Budget,
    CallSpec,
    CallState,
    Criterion,
    Failure,
    FunctionSpec,
    Objective,
    ProgramState,
    Prompt,
    Sampling,
    StepKey,
    Urgency,
    Usage,
    Value,
)

STEP_BYTES = 6000  # of a step with its call, its variable, its edges and its prompt's pieces


@dataclass(frozen=True, slots=True)
class Function:
    """A registered function with its template parsed. `heads` keeps identities of its prompts' beginnings, see `prefix.py`."""

    spec: FunctionSpec
    template: Template
    sampling: dict[str, Sampling]
    joins: dict[str, str]
    heads: dict[tuple[str, str, str], str] = field(default_factory=dict)

    @property
    def chat(self) -> bool:
        """Whether its prompt is a chat."""
        return self.spec.format == "chat"


@dataclass(slots=True, eq=False)
class Variable:
    """A write-once value. `producers` has several steps only in a race; `waiters` cannot begin before it is set."""

    name: str
    outcome: Value | Failure | None = None
    producers: list[Step] = field(default_factory=list)
    waiters: list[Step] = field(default_factory=list)
    is_sink: bool = True  # no call reads it
    criterion: Criterion | None = None
    watchers: int = 0


@dataclass(slots=True, eq=False)
class Group:
    """Sibling steps that one join waits for: finished together, charged together, never demoted apart."""

    name: str
    open_steps: int = 0
    attained_token_s: float = 0.0
    expected_token_s: float = 0.0


@dataclass(slots=True, eq=False)
class Step:
    """One output of one call: a vertex of the graph."""

    key: StepKey
    seq: int  # over all programs, in order of submission
    program: Program
    call: CallSpec
    function: Function | None
    output: str  # the hole; empty where the op has none
    variable: Variable
    sampling: Sampling
    waits: tuple[str, ...]  # variables without which it cannot begin, each once
    inputs: dict[str, Binding]
    needs: tuple[str, ...] = ()  # abilities of an `EngineSpec` that it cannot do without
    depth: int = 1  # calls on the longest path that ends here
    state: CallState = CallState.WAITING
    missing: int = 0  # how many of `waits` are not set yet
    attempt: int = 0
    failures: int = 0  # attempts that failed by an engine's fault
    busy_answers: int = 0
    deaths: int = 0  # engines that died while it ran
    evictions: int = 0
    rests: bool = False  # ready, but not to be tried again yet
    expanded: bool = False  # an `each` step whose elements stand in the graph
    # deduced
    objective: Objective = Objective.EXPEDITE
    waited_for: bool = True  # somebody waits for what comes of it (not `throughput`)
    due_s: float | None = None
    group: Group | None = None
    path_s: float = 0.0
    # service
    attained_token_s: float = 0.0
    alone_token_s: float = 0.0  # what it would receive alone, as predicted
    expected_token_s: float = 0.0  # what it will receive, as predicted
    inherited_token_s: float = 0.0  # service on the costliest path that led here
    # where it is
    prompt: Prompt | None = None
    pinned: tuple[str, ...] = ()  # prefixes on which it counts as a pin
    pins_ready: bool = False  # and counts there as one that could run now
    engine: str | None = None
    failure: Failure | None = None
    usage: Usage = Usage()
    ready_s: float | None = None
    queued_s: float = 0.0  # when it came to the queue, put back by what it had waited before
    waited_s: float = 0.0  # in the queue, in all
    sent_s: float | None = None
    started_s: float | None = None
    first_token_s: float | None = None
    ended_s: float | None = None

    @property
    def node(self) -> str:
        """Its name in the graph: the call's id, with the hole behind it where the call has several outputs."""
        return f"{self.call.id}/{self.output}" if len(self.call.outputs) > 1 else self.call.id

    @property
    def urgency(self) -> Urgency:
        """For whom it runs."""
        if self.objective is Objective.EXPEDITE:
            return Urgency.EXPEDITE
        return Urgency.BATCH if self.waited_for else Urgency.BACKGROUND

    def move(self, state: CallState) -> None:
        """Go to another state. Raises AssertionError if the table has no such step."""
        assert state in NEXT_STATES[self.state], f"{self.key}: {self.state} -> {state}"
        self.state = state


Graph: TypeAlias = "nx.DiGraph[Step]"


@dataclass(slots=True, eq=False)
class Program:
    """One user task. `open_steps` counts the steps that have not ended."""

    id: str
    seq: int
    name: str
    tenant: str
    priority: float
    submitted_s: float
    deadline_s: float | None  # absolute
    budget: Budget
    fail_fast: bool
    closed: bool
    functions: dict[str, Function] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    steps: dict[tuple[str, int], Step] = field(default_factory=dict)
    calls: dict[str, list[Step]] = field(default_factory=dict)
    held: dict[tuple[str, str], None] = field(
        default_factory=dict
    )  # engines and prefixes that they hold over a stall of it
    reader: Step | None = None  # the last step that generated
    idle_since_s: float | None = None  # nothing of it is open, and more may come
    stalls: int = 0  # how often a call followed when all had ended,
    stalled_s: float = 0.0  # and after how long, in all
    groups: dict[str, Group] = field(default_factory=dict)
    graph: Graph = field(default_factory=nx.DiGraph)
    open_steps: int = 0
    value_bytes: int = 0  # about how much memory its values take, in variables and in calls
    cancelled: bool = False
    watchers: int = 0  # of all its variables
    ended_s: float | None = None
    attained_token_s: float = 0.0
    virtual_token_s: float = 0.0  # attained over priority, counted from where others stood when it came
    longest_token_s: float = 0.0  # service on the costliest finished path
    usage: Usage = Usage()
    wasted: Usage = Usage()

    @property
    def ended(self) -> bool:
        """Whether nothing of it can change any more."""
        return self.ended_s is not None

    @property
    def wall_due_s(self) -> float | None:
        """When its budget of seconds is spent."""
        return None if self.budget.wall_s is None else self.submitted_s + self.budget.wall_s

    @property
    def state(self) -> ProgramState:
        """Its state, from its calls and whether it is closed."""
        if self.cancelled:
            return ProgramState.CANCELLED
        if not self.ended:
            return ProgramState.RUNNING if self.closed else ProgramState.OPEN
        failed = any(isinstance(v.outcome, Failure) for v in self.variables.values() if v.is_sink)
        return ProgramState.FAILED if failed else ProgramState.DONE

    def parents(self, step: Step) -> Iterator[Step]:
        """Steps that this one waits for."""
        return iter(self.graph.pred[step])

    def children(self, step: Step) -> Iterator[Step]:
        """Steps that wait for this one."""
        return iter(self.graph.succ[step])

    def open(self) -> list[Step]:
        """Steps that have not ended."""
        return [step for step in self.steps.values() if step.state not in ENDED]

    @property
    def size_bytes(self) -> int:
        """About how much memory it takes."""
        texts = sum(len(function.spec.text) for function in self.functions.values())
        return self.value_bytes + texts + STEP_BYTES * len(self.steps)

    def dissolve(self) -> None:
        """Let go of all that it holds, at once: its parts hold each other, and would else wait for the garbage collector."""
        for variable in self.variables.values():
            variable.producers.clear()
            variable.waiters.clear()
        self.reader = None
        for parts in (self.steps, self.calls, self.variables, self.functions, self.groups, self.graph):
            parts.clear()

    def validate(self) -> None:
        """State every invariant of one program. Raises AssertionError."""
        assert self.open_steps == sum(s.state not in ENDED for s in self.steps.values()), f"{self.id}: open steps"
        for step in self.steps.values():
            if step.state is CallState.WAITING:
                unset = sum(self.variables[name].outcome is None for name in step.waits)
                assert step.missing == unset > 0, f"{step.key}: misses {step.missing}, waits for {unset}"
            if step.state in IN_ENGINE:
                assert step.engine is not None, f"{step.key}: {step.state} nowhere"
            if step.state in ENDED:
                assert step.ended_s is not None, f"{step.key}: ended, but not when"
        for variable in self.variables.values():
            if isinstance(variable.outcome, Value):
                continue
            if variable.producers and all(s.state in ENDED for s in variable.producers):
                assert variable.outcome is not None, f"{self.id}.{variable.name}: nobody will set it"
        assert self.watchers == sum(v.watchers for v in self.variables.values()) >= 0, f"{self.id}: watchers"
        for group in self.groups.values():
            members = sum(s.group is group and s.state not in ENDED for s in self.steps.values())
            assert group.open_steps == members, f"{self.id} {group.name}: open members"
        if self.ended:
            assert self.open_steps == 0
            assert self.closed or self.cancelled
