"""What the server answers. A client ignores fields that it does not know, so that a newer server can be talked to.

Events of `GET .../variables/{name}/stream`: `delta` (DeltaReply), `reset` (ResetReply: forget the text so far), then
one of `value` (VariableReply) and `error` (Problem; of type `closing` when the server shuts down before), which ends the stream.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

ProgramStateName = Literal["open", "running", "done", "failed", "cancelled"]
VariableStateName = Literal["open", "pending", "ready", "failed", "cancelled"]


class Reply(BaseModel):
    """Something the server said."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class UsageReply(Reply):
    """Tokens as the engine counted them; `estimated` where it did not."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    estimated: bool = False


class TimingReply(Reply):
    """Moments of one call in seconds since its program was submitted; None: not yet.

    `queue_s` is from ready (all inputs set) to started, `wall_s` from ready to the end.
    """

    submitted_s: float | None = None
    ready_s: float | None = None
    sent_s: float | None = None
    started_s: float | None = None
    first_token_s: float | None = None
    ended_s: float | None = None
    queue_s: float | None = None
    wall_s: float | None = None


class ProgramTimingReply(Reply):
    """`wall_s` is from submission to the end, or till now; `alone_s` what the program needs by itself."""

    wall_s: float = 0.0
    alone_s: float | None = None


class ErrorReply(Reply):
    """Why a variable has no value; `call` is where it began."""

    type: str
    message: str
    call: str | None = None
    retryable: bool = False


class VariableReply(Reply):
    """One variable. A list variable's value is a list of strings."""

    name: str
    state: VariableStateName
    value: str | list[str] | None = None
    error: ErrorReply | None = None
    usage: UsageReply | None = None
    timing: TimingReply | None = None


class Problem(Reply):
    """application/problem+json (RFC 9457). `variable` stands in the answer to a read of a variable that failed."""

    type: str
    title: str = ""
    status: int
    detail: str = ""
    program_id: str | None = None
    call_id: str | None = None
    retryable: bool = False
    at: str = ""
    variable: VariableReply | None = None


class ProgramReply(Reply):
    """One program. `calls` counts its steps by state; `values` and `errors` (by sink) answer a submit with `?wait`."""

    id: str
    state: ProgramStateName
    name: str = ""
    at_risk: bool = False
    calls: dict[str, int] = {}
    variables: list[str] = []
    usage: UsageReply = UsageReply()
    timing: ProgramTimingReply = ProgramTimingReply()
    slowdown: float | None = None
    links: dict[str, str] = {}
    values: dict[str, str | list[str]] | None = None
    errors: dict[str, ErrorReply] | None = None


class ProgramPage(Reply):
    """A page of programs, newest first; `next` is the cursor of the next one."""

    programs: list[ProgramReply]
    next: str | None = None


class FunctionReply(Reply):
    """A registered function. A segment is {"text": ...}, {"input": name}, {"output": name} or {"role": name}."""

    id: str
    name: str
    segments: list[dict[str, str]]
    inputs: list[str]
    outputs: list[str]
    format: Literal["chat", "text"] = "chat"


class NodeReply(Reply):
    """One step of one call. `id` is the call's id, with `/hole` behind it where the call has several outputs."""

    id: str
    call: str
    op: str
    function: str = ""
    state: str
    objective: Literal["expedite", "batch"]
    group: str | None = None
    path_s: float = 0.0
    attempt: int = 0
    engine: str | None = None
    usage: UsageReply = UsageReply()
    timing: TimingReply = TimingReply()
    why: str = ""
    error: ErrorReply | None = None


class EdgeReply(Reply):
    """An edge between two nodes, by their ids."""

    source: str = Field(validation_alias="from", serialization_alias="from")
    target: str = Field(validation_alias="to", serialization_alias="to")


class GraphReply(Reply):
    """A program's steps in the order of submission, and its edges."""

    nodes: list[NodeReply]
    edges: list[EdgeReply]

    def as_json(self) -> dict[str, Any]:
        """The graph as plain JSON values, as the server sent it."""
        return self.model_dump(by_alias=True)


class TraceReply(Reply):
    """A program's steps on a time line, as Perfetto and chrome://tracing read it."""

    trace_events: list[dict[str, Any]] = Field(alias="traceEvents")
    display_time_unit: Literal["ms"] = Field(alias="displayTimeUnit")


class DeltaReply(Reply):
    """Some more text of an attempt; `offset` is the number of characters before it."""

    offset: int
    text: str
    attempt: int


class ResetReply(Reply):
    """The text so far is void: another attempt begins."""

    attempt: int
