"""The nouns of the core: functions, bindings, calls, values, prompts, engines. Frozen, without behaviour beyond their own shape.

The life of a step (one output of one call; a call with several outputs is a chain of steps):

    WAITING ──inputs set──▶ READY ──Dispatch──▶ SENT ──Started──▶ RUNNING ──Finished──▶ DONE
       │                      ▲                   │                  │  ▲
       │                      └───── retry ───────┴──── Failed ──────┤  └─Resume─ PAUSED ◀─Pause─ RUNNING
       └──── a parent failed ───────────────▶ FAILED ◀── attempts spent
    any open state ── Cancelled, or lost a race ──▶ CANCELLED
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Literal, NamedTuple

Format = Literal["chat", "text"]


class Op(StrEnum):
    """What a call does."""

    GENERATE = "generate"
    TOOL = "tool"
    TRANSFORM = "transform"
    EMBED = "embed"
    RETRIEVE = "retrieve"
    RERANK = "rerank"


class CallState(StrEnum):
    """Where a step stands. `NEXT_STATES` is the whole table."""

    WAITING = "waiting"
    READY = "ready"
    SENT = "sent"
    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED = frozenset({CallState.DONE, CallState.FAILED, CallState.CANCELLED})
IN_ENGINE = frozenset({CallState.SENT, CallState.RUNNING, CallState.PAUSED})
NEXT_STATES: Mapping[CallState, frozenset[CallState]] = {
    CallState.WAITING: frozenset({CallState.READY, CallState.FAILED, CallState.CANCELLED}),
    CallState.READY: frozenset({CallState.SENT, CallState.DONE, CallState.FAILED, CallState.CANCELLED}),
    CallState.SENT: frozenset(CallState) - {CallState.WAITING, CallState.SENT},
    CallState.RUNNING: frozenset(CallState) - {CallState.WAITING, CallState.SENT, CallState.RUNNING},
    CallState.PAUSED: frozenset(CallState) - {CallState.WAITING, CallState.SENT, CallState.PAUSED},
    CallState.DONE: frozenset(),
    CallState.FAILED: frozenset(),
    CallState.CANCELLED: frozenset(),
}


class ProgramState(StrEnum):
    """Where a program stands; a pure function of its calls and of whether it is closed."""

    OPEN = "open"  # more calls may come
    RUNNING = "running"  # closed, calls still open
    DONE = "done"
    FAILED = "failed"  # at least one sink failed
    CANCELLED = "cancelled"


class Objective(StrEnum):
    """What the scheduler deduced for a call."""

    EXPEDITE = "expedite"
    BATCH = "batch"


class Urgency(IntEnum):
    """For whom a call runs. While one runs, less urgent ones may slow it down only so far."""

    BACKGROUND = 0  # nobody waits for it
    BATCH = 1  # somebody waits, but not for it alone
    EXPEDITE = 2


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one output is generated. `schema` is canonical JSON text, so that it is hashable."""

    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    keep_stop: bool = False
    seed: int | None = None
    ignore_eos: bool = False
    schema: str | None = None
    choices: tuple[str, ...] | None = None
    allow_empty: bool = True


@dataclass(frozen=True, slots=True)
class Value:
    """The text of a set variable and its length in tokens (exact where someone counted, else estimated).

    A list variable also has `items`; its `text` is then their JSON.
    """

    text: str
    tokens: int
    items: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a variable has no value: a stable type, a message fit for users, and the call where it began."""

    type: str
    message: str
    call: str | None = None
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class FunctionSpec:
    """A semantic function as it is registered: `id` is the SHA-256 of all but the name.

    `outputs` and `joins` are sorted pairs; `text_tokens` gives the length of each constant segment where someone counted.
    """

    id: str
    name: str
    text: str
    outputs: tuple[tuple[str, Sampling], ...]
    joins: tuple[tuple[str, str], ...] = ()
    format: Format = "chat"
    text_tokens: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference to a variable of the same program, set or not."""

    name: str


Binding = Value | Ref | tuple[Value | Ref, ...]


@dataclass(frozen=True, slots=True)
class Transform:
    """A pure operation of the server on one value: `field` takes a dotted path out of JSON text, `items` splits a JSON list."""

    kind: Literal["field", "items"]
    path: str = ""


@dataclass(frozen=True, slots=True)
class CallSpec:
    """One use of a function, as it was submitted and checked. Holes and outputs are pairs in the function's order."""

    id: str
    op: Op
    inputs: tuple[tuple[str, Binding], ...]
    outputs: tuple[tuple[str, str], ...]  # hole, variable name
    function: str = ""  # the function's id
    tool: str = ""
    transform: Transform | None = None
    sampling: tuple[tuple[str, Sampling], ...] = ()  # overrides, whole
    model: str = ""
    after: tuple[str, ...] = ()
    each: str = ""  # the hole whose list is spread over one call an element
    race: str = ""  # calls of one race share their outputs' names
    attempts: int | None = None
    fallback: tuple[tuple[str, Value], ...] = ()
    timeout_s: float | None = None
    expect_return_s: float | None = None  # until its program goes on, when nothing else of it is open


class Criterion(NamedTuple):
    """What a user wants of a variable: its kind, and the seconds from submission for a deadline."""

    kind: Literal["latency", "throughput", "deadline"]
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """What a program may use in all; None is no bound."""

    total_tokens: int | None = None
    calls: int | None = None
    wall_s: float | None = None

    def changed(self, by: Budget) -> Budget:
        """This one with the bounds that another names."""
        tokens, calls, wall_s = by.total_tokens, by.calls, by.wall_s
        return Budget(
            self.total_tokens if tokens is None else tokens,
            self.calls if calls is None else calls,
            self.wall_s if wall_s is None else wall_s,
        )


class StepKey(NamedTuple):
    """The name of a vertex of the graph: one output of one call."""

    program: str
    call: str
    step: int = 0


class PieceKind(StrEnum):
    """What a piece of a prompt is. Only ROLE pieces and CONSTANT text may hold control tokens; a VALUE never does."""

    ROLE = "role"
    CONSTANT = "constant"
    VALUE = "value"


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of a prompt. A ROLE's text is `system`, `user` or `assistant`; `tokens` is an estimate."""

    kind: PieceKind
    text: str
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Prompt:
    """What an engine reads: pieces in order, and for each the identity of the prompt's beginning that ends with it.

    `chat` says that the ROLE pieces are turns of a chat (implied ones included); without it there are none. The answer is
    written after the last piece: right after an assistant ROLE, or, where text or values follow that ROLE, continuing it.
    """

    pieces: tuple[Piece, ...]
    prefixes: tuple[str, ...]
    chat: bool

    @property
    def tokens(self) -> int:
        """How long it is, as estimated."""
        return sum(piece.tokens for piece in self.pieces)

    def head(self, prefix: str) -> Prompt:
        """The beginning that `prefix` identifies. Raises ValueError when it is not one of this prompt's."""
        end = self.prefixes.index(prefix) + 1
        return Prompt(self.pieces[:end], self.prefixes[:end], self.chat)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one attempt as the engine counted them; `estimated` where it did not and we did."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class CostModel:
    """What an engine's work costs: straight lines, measured or computed from a machine's figures.

    A step that decodes a batch with R resident tokens in S sequences lasts
    `step_s + R * resident_token_s + S * sequence_s`. Prefilling P tokens lasts `P * prefill_token_s`.
    Moving a token's KV to the host or back lasts `offload_token_s` each way.
    """

    prefill_token_s: float = 1 / 1500
    step_s: float = 0.011
    sequence_s: float = 0.0008
    resident_token_s: float = 0.0
    offload_token_s: float = 1e-5


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What an engine is and can do, as it says when it comes up. The core never assumes an ability that is not listed."""

    id: str
    kind: str  # embedded, sglang, openai, fake, roofline
    models: tuple[str, ...]
    context_tokens: int
    kv_tokens: int
    max_running: int
    can_pause: bool = False  # Pause and Resume keep the KV of a running call
    can_pin: bool = False  # Keep warms a prefix and holds it
    can_offload: bool = False  # Keep moves a prefix to the host, where it has `host_tokens`, and calls bring it back
    shares_prefixes: bool = True  # reuses a prompt's beginning that it has seen
    continues: bool = True  # can go on with an assistant's turn that has text in it
    chat: bool = True  # has a chat template
    schemas: bool = False  # enforces a JSON Schema or choices
    host_tokens: int = 0
    cost: CostModel = field(default_factory=CostModel)


class Tier(StrEnum):
    """Where the KV of a prefix is wanted."""

    NONE = "none"
    HOST = "host"
    DEVICE = "device"
