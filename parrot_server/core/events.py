"""All that can happen, and all that can be done about it: the events into the core and the actions out of it.

Events are journalled as they came, so they hold values and no objects of the runtime. An event that names an older attempt than
the step's present one is ignored. Parts of the vocabulary that no engine or route speaks yet stand here so that a journal of
today can be read tomorrow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from parrot_server.core.model import (
    Budget,
    CallSpec,
    CallState,
    CostModel,
    Criterion,
    EngineSpec,
    Failure,
    FunctionSpec,
    ProgramState,
    Prompt,
    Sampling,
    StepKey,
    Tier,
    Usage,
    Value,
)
from parrot_server.errors import Fault

# ---- events: what clients did -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Registered:
    """A function was registered for all programs; its name means something to this tenant alone (empty: to everybody)."""

    function: FunctionSpec
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Submitted:
    """A program was opened, with what it holds so far. `variables` pairs a name with its value, or None for an open one."""

    program: str
    name: str = ""
    tenant: str = ""
    functions: tuple[FunctionSpec, ...] = ()
    variables: tuple[tuple[str, Value | None], ...] = ()
    calls: tuple[CallSpec, ...] = ()
    criteria: tuple[tuple[str, Criterion], ...] = ()
    priority: float = 1.0
    deadline_s: float | None = None
    budget: Budget = Budget()
    fail_fast: bool = False
    closed: bool = True


@dataclass(frozen=True, slots=True)
class CallsAdded:
    """More calls for a live program."""

    program: str
    functions: tuple[FunctionSpec, ...] = ()
    variables: tuple[tuple[str, Value | None], ...] = ()
    calls: tuple[CallSpec, ...] = ()
    criteria: tuple[tuple[str, Criterion], ...] = ()
    close: bool = False


@dataclass(frozen=True, slots=True)
class Closed:
    """No more calls will come."""

    program: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The user wants the program to end now."""

    program: str


@dataclass(frozen=True, slots=True)
class VariableSet:
    """A client set an open variable."""

    program: str
    name: str
    value: Value


@dataclass(frozen=True, slots=True)
class CriteriaSet:
    """What the user wants has changed. None leaves a thing as it is."""

    program: str
    criteria: tuple[tuple[str, Criterion], ...] = ()
    priority: float | None = None
    deadline_s: float | None = None
    budget: Budget | None = None


@dataclass(frozen=True, slots=True)
class LimitsSet:
    """The operator set tenants' weights: their shares under saturation."""

    weights: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Watched:
    """A reader waits for a variable."""

    program: str
    name: str


@dataclass(frozen=True, slots=True)
class Unwatched:
    """A reader of a variable left."""

    program: str
    name: str


# ---- events: what engines did -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EngineUp:
    """An engine is there, new or again; its cache is empty."""

    engine: EngineSpec


@dataclass(frozen=True, slots=True)
class EngineDown:
    """An engine is gone, and all that ran in it."""

    engine: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What an engine says of itself: what others queued there too, and costs that were measured."""

    engine: str
    running: int = 0
    waiting: int = 0
    used_tokens: int = 0
    cost: CostModel | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """An engine took a call out of its own queue."""

    key: StepKey
    attempt: int


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A call's prompt is in the KV cache."""

    key: StepKey
    attempt: int
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How many output tokens each running call of an engine has; at most one such event each 50 ms and engine."""

    engine: str
    output_tokens: tuple[tuple[StepKey, int, int], ...]  # key, attempt, tokens so far


@dataclass(frozen=True, slots=True)
class Finished:
    """A call's answer is whole. `stop` is the stop string that ended it, if one did."""

    key: StepKey
    attempt: int
    value: Value
    usage: Usage
    finish: Literal["stop", "length"] = "stop"
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """An attempt failed. `type` and `message` are fit for users."""

    key: StepKey
    attempt: int
    fault: Fault
    type: str
    message: str
    retry_after_s: float | None = None
    usage: Usage = Usage()


@dataclass(frozen=True, slots=True)
class Paused:
    """An engine stopped decoding a call and keeps its KV: it was asked to, or its token grant is spent."""

    key: StepKey
    attempt: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Aborted:
    """An engine let a call go; only now is its room free."""

    key: StepKey
    attempt: int


@dataclass(frozen=True, slots=True)
class Warmed:
    """A prefix is in an engine's cache, as a Keep asked."""

    prefix: str
    engine: str
    tokens: int


@dataclass(frozen=True, slots=True)
class WarmFailed:
    """A Keep could not be done."""

    prefix: str
    engine: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class KvChanged:
    """Where the KV of a prefix is now, as the engine says: on the host, as a Keep asked (no tokens: it could not), or evicted."""

    prefix: str
    engine: str
    tier: Tier
    tokens: int


# ---- events: tools, time, the server itself -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A worker asks for tool calls."""

    worker: str
    tools: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ToolHeartbeat:
    """A worker is still at a tool call."""

    lease: str


@dataclass(frozen=True, slots=True)
class ToolReturned:
    """A worker brought a tool call's outcome."""

    lease: str
    outcome: Value | Failure


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: what was waited for in time may be due."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Take nothing new; let what runs end."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """The server started again from its journal: nothing that was in an engine is there any more."""

    epoch: int


ClientEvent = (
    Registered
    | Submitted
    | CallsAdded
    | Closed
    | Cancelled
    | VariableSet
    | CriteriaSet
    | LimitsSet
    | Watched
    | Unwatched
)
EngineEvent = (
    EngineUp
    | EngineDown
    | EngineLoad
    | Started
    | Prefilled
    | Progress
    | Finished
    | Failed
    | Paused
    | Aborted
    | Warmed
    | WarmFailed
    | KvChanged
)
Event = ClientEvent | EngineEvent | WorkerReady | ToolHeartbeat | ToolReturned | Tick | Drain | Recovered

# ---- actions ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Resolve:
    """A variable has its value, or its error; readers may be told."""

    program: str
    name: str
    outcome: Value | Failure


@dataclass(frozen=True, slots=True)
class CallChanged:
    """A step went to another state; for those who look on."""

    key: StepKey
    state: CallState
    attempt: int


@dataclass(frozen=True, slots=True)
class ProgramEnded:
    """Every call of a closed program has ended."""

    program: str
    state: ProgramState


@dataclass(frozen=True, slots=True)
class Forget:
    """The core has dropped a program; so may everyone."""

    program: str


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send a step to an engine. `priority`: higher is sooner. `grant_tokens`: pause after so many outputs (None: no bound).

    `variable` is the name that the answer will have; its readers see the text as it comes.
    """

    key: StepKey
    attempt: int
    engine: str
    variable: str
    model: str
    prompt: Prompt
    sampling: Sampling
    salt: str
    priority: int = 0
    grant_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop decoding a call, keep its KV; the engine answers Paused."""

    key: StepKey
    attempt: int
    engine: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on decoding a paused call, for so many tokens."""

    key: StepKey
    attempt: int
    engine: str
    grant_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Abort:
    """Let a call go; the engine answers Aborted."""

    key: StepKey
    attempt: int
    engine: str


@dataclass(frozen=True, slots=True)
class Keep:
    """Where the KV of a prefix is wanted: warm, pin, retain, offload and release in one word.

    DEVICE computes it if need be and holds it (the engine answers Warmed or WarmFailed), HOST moves it out, NONE lets it go.
    `prompt` is the prefix itself and is None for NONE. `until_s` is the time by which the engine may let go by itself.
    """

    prefix: str
    engine: str
    tier: Tier
    until_s: float
    salt: str = ""
    model: str = ""
    prompt: Prompt | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """Hand a tool call to a worker."""

    key: StepKey
    attempt: int
    lease: str
    worker: str
    tool: str
    arguments: tuple[tuple[str, Value], ...]
    until_s: float


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send a Tick at this time, in the core's seconds."""

    time_s: float


Action = Resolve | CallChanged | ProgramEnded | Forget | Dispatch | Pause | Resume | Abort | Keep | Lease | WakeAt
