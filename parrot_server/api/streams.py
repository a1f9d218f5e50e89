"""Streams of a program: its events, and the text of a variable as it comes."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Response

from parrot_sdk.wire import DeltaReply, ResetReply, VariableReply
from parrot_server.api import to_wire
from parrot_server.api.caller import Caller, CallerDep
from parrot_server.api.problems import problem
from parrot_server.api.queries import ProgramId, Streaming, VariableName
from parrot_server.api.replies import variable_problem
from parrot_server.api.sse import EventStream, event, event_with_value
from parrot_server.core.events import CallChanged, Resolve
from parrot_server.core.model import Failure, Value
from parrot_server.errors import Refused
from parrot_server.program_log import Entry, Lagged, ProgramMoved
from parrot_server.streams import Delta, Reset, StreamItem

router = APIRouter(prefix="/v1/programs/{program_id}", tags=["streams"])
EVENT_STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}
LastEventId = Annotated[str | None, Header(alias="Last-Event-ID", max_length=64)]


@router.get("/events", responses=EVENT_STREAM)
async def events(
    caller: CallerDep, program_id: ProgramId, query: Streaming, last_event_id: LastEventId = None
) -> Response:
    """What happens in the program: `program`, `call`, `variable`, and `lagged` when some of it is no longer kept."""
    caller.check_program(program_id)
    (cursor,) = _cursor(last_event_id, r"(\d{1,18})", default=(0,))
    entries = await caller.runtime.events(program_id, cursor)

    async def rendered() -> AsyncGenerator[Iterator[bytes], None]:
        async for entry in entries:
            yield _entry_event(entry)

    return _stream(caller, program_id, query.cancel_on_disconnect, rendered())


@router.get("/variables/{name}/stream", responses=EVENT_STREAM)
async def text(
    caller: CallerDep,
    program_id: ProgramId,
    name: VariableName,
    query: Streaming,
    last_event_id: LastEventId = None,
) -> Response:
    """The text of a variable as `delta`, `reset` when it starts anew, then `value` or `error` (`closing`: the server shuts down)."""
    caller.check_program(program_id)
    attempt, offset = _cursor(last_event_id, r"(\d{1,9}):(\d{1,12})", default=(0, 0))
    items = await caller.runtime.stream(program_id, name, attempt, offset)

    async def rendered() -> AsyncGenerator[Iterator[bytes], None]:
        async for item in items:
            yield _item_event(caller, program_id, name, item)

    closing = problem(
        503, "closing", "the server is shutting down before the value came", program_id=program_id, retryable=True
    )
    return _stream(caller, program_id, query.cancel_on_disconnect, rendered(), _error_event(closing))


def _stream(
    caller: Caller,
    program_id: str,
    cancel: bool,
    rendered: AsyncGenerator[Iterator[bytes], None],
    farewell: bytes = b"",
) -> EventStream:
    async def left() -> None:
        await caller.left(program_id if cancel else None)

    return EventStream(rendered, caller.runtime.closing, caller.settings.write_timeout_s, left, farewell)


def _cursor(sent: str | None, pattern: str, default: tuple[int, ...]) -> tuple[int, ...]:
    if not sent:
        return default
    match = re.fullmatch(pattern, sent)
    if match is None:
        message = "Last-Event-ID is not one of this stream: leave it out to read from the beginning"
        raise Refused("bad_value", message, at="headers.last-event-id")
    return tuple(int(number) for number in match.groups())


def _entry_event(entry: Entry) -> Iterator[bytes]:
    at_s, id = round(entry.at_s, 6), str(entry.cursor)
    match entry.what:
        case ProgramMoved(state):
            return event("program", {"state": state, "at_s": at_s}, id)
        case CallChanged(key, state, attempt):
            data = {"call": key.call, "step": key.step, "state": state, "attempt": attempt, "at_s": at_s}
            return event("call", data, id)
        case Resolve(_, name, Value() as value):
            size = {"characters": len(value.text), "tokens": value.tokens}
            return event("variable", {"name": name, "state": "ready", **size, "at_s": at_s}, id)
        case Resolve(_, name, Failure() as failure):
            error = to_wire.error(failure).model_dump(exclude_none=True)
            ended = "cancelled" if failure.type == "cancelled" else "failed"
            return event("variable", {"name": name, "state": ended, "error": error, "at_s": at_s}, id)
        case Lagged(missed):
            return event("lagged", {"missed": missed}, id)
    raise AssertionError(f"an entry of the log is none: {type(entry.what).__name__}")


def _item_event(caller: Caller, program_id: str, name: str, item: StreamItem) -> Iterator[bytes]:
    match item:
        case Delta(offset, text, attempt):
            delta = DeltaReply(offset=offset, text=text, attempt=attempt)
            return event("delta", delta.model_dump(), f"{attempt}:{offset + len(text)}")
        case Reset(attempt):
            return event("reset", ResetReply(attempt=attempt).model_dump(), f"{attempt}:0")
        case Value():
            reply = _variable(caller, program_id, name).model_dump(exclude={"value"}, exclude_none=True)
            return event_with_value("value", reply, to_wire.text_of(item))
        case Failure():
            return iter([_error_event(variable_problem(program_id, _variable(caller, program_id, name), item))])


def _error_event(reply: Response) -> bytes:
    return b"event: error\ndata: " + bytes(reply.body) + b"\n\n"


def _variable(caller: Caller, program_id: str, name: str) -> VariableReply:
    """The variable with its usage and timing; by its name alone when the program was forgotten just now."""
    try:
        return to_wire.variable(caller.runtime.scheduler.variable(program_id, name))
    except Refused:
        return VariableReply(name=name, state="failed")
