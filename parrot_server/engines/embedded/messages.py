"""What the server and the engine process say to each other: JSON of these dataclasses, each behind its length in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from parrot_server.core.model import EngineSpec, Prompt, Sampling, Tier
from parrot_server.engines.base import Done, Load, Request
from parrot_server.engines.embedded.settings import Settings
from parrot_server.errors import Fault

LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class Start:
    """The first message: load the model."""

    settings: Settings
    engine: str
    kind: Literal["start"] = "start"


@dataclass(frozen=True, slots=True)
class Generate:
    """Begin a call; its `Report`s follow until one has `done` or `failure`, or says that it was let go."""

    request: Request
    kind: Literal["generate"] = "generate"


@dataclass(frozen=True, slots=True)
class Keep:
    """Bring a prefix to a tier; one `Report` with `kept` or `failure` follows. `prompt` is the prefix itself."""

    rid: str
    prefix: str
    prompt: Prompt | None
    salt: str
    tier: Tier
    hold_s: float
    kind: Literal["keep"] = "keep"


@dataclass(frozen=True, slots=True)
class Check:
    """Say whether an output's schema or choices can be enforced; one `Report` with `kept` (nothing) or `failure` follows."""

    rid: str
    sampling: Sampling
    kind: Literal["check"] = "check"


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop decoding a call, keep its KV."""

    rid: str
    kind: Literal["pause"] = "pause"


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on with a paused call."""

    rid: str
    grant_tokens: int | None
    kind: Literal["resume"] = "resume"


@dataclass(frozen=True, slots=True)
class Abort:
    """Let a call or a keep go; a `Report` with `let_go` follows, even when it is not known."""

    rid: str
    kind: Literal["abort"] = "abort"


@dataclass(frozen=True, slots=True)
class Ping:
    """Say how busy you are."""

    kind: Literal["ping"] = "ping"


ToChild = Start | Generate | Keep | Check | Pause | Resume | Abort | Ping


@dataclass(frozen=True, slots=True)
class Ready:
    """The model is loaded."""

    spec: EngineSpec
    kind: Literal["ready"] = "ready"


@dataclass(frozen=True, slots=True)
class NotReady:
    """The model could not be loaded; the message says what to do."""

    message: str
    kind: Literal["not_ready"] = "not_ready"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call failed."""

    fault: Fault
    type: str
    message: str


@dataclass(slots=True)
class Report:
    """All that one step did for one call. `prefill` is the prompt's tokens and how many were cached."""

    rid: str
    taken: bool = False
    prefill: tuple[int, int] | None = None
    text: str = ""
    output_tokens: int = 0
    stalled: bool = False
    kept: int | None = None
    done: Done | None = None
    failure: Failure | None = None
    let_go: bool = False


@dataclass(frozen=True, slots=True)
class Reports:
    """What came of one step, for all calls in one message."""

    reports: list[Report]
    kind: Literal["reports"] = "reports"


@dataclass(frozen=True, slots=True)
class Pong:
    """How busy the engine is."""

    load: Load
    kind: Literal["pong"] = "pong"


FromChild = Ready | NotReady | Reports | Pong

_TO_CHILD: TypeAdapter[ToChild] = TypeAdapter(Annotated[ToChild, Field(discriminator="kind")])
_FROM_CHILD: TypeAdapter[FromChild] = TypeAdapter(Annotated[FromChild, Field(discriminator="kind")])


def to_child(message: ToChild) -> bytes:
    """A message with its length ahead of it."""
    return _framed(_TO_CHILD, message)


def from_child(message: FromChild) -> bytes:
    """A message with its length ahead of it."""
    return _framed(_FROM_CHILD, message)


def read_to_child(body: bytes) -> ToChild:
    """The message in a frame's body."""
    return _TO_CHILD.validate_json(body)


def read_from_child(body: bytes) -> FromChild:
    """The message in a frame's body."""
    return _FROM_CHILD.validate_json(body)


def _framed(adapter: TypeAdapter[Any], message: object) -> bytes:
    body = adapter.dump_json(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body
