"""The shape of a program that is simulated: its calls, how long their prompts and answers are, and how they hang together.

Texts do not matter here, lengths and identities do: each text is a short name that stands for so many tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from parrot_server.core.cost import alone_s
from parrot_server.core.events import CallsAdded, Submitted
from parrot_server.core.model import (
    Binding,
    CallSpec,
    CostModel,
    Criterion,
    FunctionSpec,
    Op,
    Ref,
    Sampling,
    Value,
)


@dataclass(frozen=True, slots=True)
class CallShape:
    """One call.

    Args:
        id: its name in the program.
        own_tokens: of its prompt what is new and its own.
        output_tokens: what the model will write.
        max_tokens: what the scheduler is told at first; 0: the truth.
        function: calls of one function are predicted from each other.
        heads: names and lengths of beginnings that other calls have too, in order.
        extends: a call whose whole prompt and answer this one's prompt begins with, as a conversation does.
        reads: calls whose answers stand in its prompt.
        stall_s: a tool, or a person, takes so long between what it waits for and its own part of the prompt.
        criterion: what is wanted of its answer, if anything is said.
        prefilled: its prompt is read for nothing.
    """

    id: str
    own_tokens: int
    output_tokens: int
    max_tokens: int = 0
    function: str = "call"
    heads: tuple[tuple[str, int], ...] = ()
    extends: str = ""
    reads: tuple[str, ...] = ()
    stall_s: float = 0.0
    criterion: Literal["latency", "throughput"] | None = None
    prefilled: bool = False

    @property
    def waits_for(self) -> tuple[str, ...]:
        """Calls that must end first."""
        return (self.extends, *self.reads) if self.extends else self.reads


@dataclass(frozen=True)
class ProgramShape:
    """One program.

    Args:
        kind: its class in reports.
        at_s: when it comes.
        live: its client adds each call when it knows that there is one, as a loop on values does: nobody can see what will come.
    """

    id: str
    calls: tuple[CallShape, ...]
    kind: str = "program"
    at_s: float = 0.0
    tenant: str = ""
    priority: float = 1.0
    deadline_s: float | None = None
    live: bool = False
    index: dict[str, CallShape] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", {call.id: call for call in self.calls})

    @cached_property
    def prompt_tokens(self) -> dict[str, int]:
        """How long each call's prompt is."""
        lengths: dict[str, int] = {}
        for call in self.calls:
            tokens = sum(tokens for _, tokens in call.heads) + call.own_tokens
            if call.extends:
                tokens += lengths[call.extends] + self.index[call.extends].output_tokens
            lengths[call.id] = tokens + sum(self.index[name].output_tokens for name in call.reads)
        return lengths

    def alone_s(self, cost: CostModel) -> float:
        """Seconds of its longest path on an engine that has nothing else to do, stalls included; what it extends is cached."""
        ends: dict[str, float] = {}
        for call in self.calls:
            fresh = self.prompt_tokens[call.id] - (self.prompt_tokens[call.extends] if call.extends else 0)
            begin_s = max((ends[name] for name in call.waits_for), default=0.0) + call.stall_s
            ends[call.id] = begin_s + alone_s(cost, 0 if call.prefilled else fresh, call.output_tokens)
        return max(ends.values(), default=0.0)

    def work_s(self, cost: CostModel) -> float:
        """Seconds that all its calls need, one after another: what a clairvoyant policy goes by."""
        return sum(alone_s(cost, call.own_tokens, call.output_tokens) for call in self.calls)


def function_of(call: CallShape) -> FunctionSpec:
    """The function that a call uses: what it reads, and its answer."""
    outputs = (("output", Sampling()),)
    return FunctionSpec(call.function, call.function, "{{input}}{{output}}", outputs, joins=(("input", ""),))


def answer_text(program: ProgramShape, call: str) -> str:
    """The text that stands for a call's answer."""
    return f"{program.id}/{call}"


def own_value(program: ProgramShape, call: CallShape) -> Value:
    """A call's own part of its prompt."""
    return Value(f"{program.id}/{call.id}?", call.own_tokens)


def declared(program: ProgramShape) -> Submitted:
    """The program as one submit; parts that tools bring are open variables named `<call>?`."""
    stalled = [call for call in program.calls if call.stall_s]
    parts: dict[str, tuple[Value | Ref, ...]] = {}
    for call in program.calls:
        own: Value | Ref = Ref(f"{call.id}?") if call.stall_s else own_value(program, call)
        parts[call.id] = tuple(_parts(program, call, parts, own))
    return Submitted(
        program=program.id,
        name=program.kind,
        tenant=program.tenant,
        variables=tuple((f"{call.id}?", None) for call in stalled),
        calls=tuple(_call(call, parts[call.id]) for call in program.calls),
        criteria=tuple((call.id, Criterion(call.criterion)) for call in program.calls if call.criterion),
        priority=program.priority,
        deadline_s=program.deadline_s,
    )


def added(program: ProgramShape, call: CallShape, parts: dict[str, tuple[Value | Ref, ...]], close: bool) -> CallsAdded:
    """One more call of a live program. Notes in `parts` what its prompt is made of."""
    parts[call.id] = tuple(_parts(program, call, parts, own_value(program, call)))
    criteria = ((call.id, Criterion(call.criterion)),) if call.criterion else ()
    return CallsAdded(program.id, calls=(_call(call, parts[call.id]),), criteria=criteria, close=close)


def opened(program: ProgramShape) -> Submitted:
    """A live program before its first call."""
    return Submitted(
        program=program.id,
        name=program.kind,
        tenant=program.tenant,
        priority=program.priority,
        deadline_s=program.deadline_s,
        closed=False,
    )


def undeclared(program: ProgramShape, call: CallShape, parts: dict[str, tuple[Value, ...]]) -> Submitted:
    """One call as a client sends it that keeps the structure to itself: a finished prompt. Notes in `parts` what it was made of."""
    literal: list[Value] = []
    for part in _parts(program, call, parts, own_value(program, call)):
        if isinstance(part, Ref):
            part = Value(answer_text(program, part.name), program.index[part.name].output_tokens)
        literal.append(part)
    parts[call.id] = tuple(literal)
    return Submitted(
        program=f"{program.id}.{call.id}",
        name=program.kind,
        tenant=program.tenant,
        calls=(_call(call, parts[call.id]),),
        priority=program.priority,
    )


def _parts(
    program: ProgramShape,
    call: CallShape,
    parts: dict[str, tuple[Value, ...]] | dict[str, tuple[Value | Ref, ...]],
    own: Value | Ref,
) -> Iterator[Value | Ref]:
    for name, tokens in call.heads:
        yield Value(name, tokens)
    if call.extends:
        yield from parts[call.extends]
        yield Ref(call.extends)
    for name in call.reads:
        yield Ref(name)
    if isinstance(own, Ref) or own.tokens:
        yield own


def _call(call: CallShape, parts: Binding) -> CallSpec:
    sampling = (("output", Sampling(max_tokens=call.max_tokens or call.output_tokens)),)
    return CallSpec(
        id=call.id,
        op=Op.GENERATE,
        inputs=(("input", parts),),
        outputs=(("output", call.id),),
        function=call.function,
        sampling=sampling,
    )
