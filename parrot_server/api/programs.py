"""/v1/programs: submit, watch, grow, change and cancel programs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Annotated

from fastapi import APIRouter, Header, Response

from parrot_sdk.wire import CallsBody, GraphReply, PatchBody, ProgramBody, ProgramPage, ProgramReply, TraceReply
from parrot_server.api import to_wire
from parrot_server.api.caller import Caller, CallerDep
from parrot_server.api.openapi import takes
from parrot_server.api.queries import Paging, ProgramId, Waiting
from parrot_server.api.replies import answer, answer_large, documented
from parrot_server.api.trace import chrome_trace
from parrot_server.core.events import Cancelled, ClientEvent, Closed
from parrot_server.core.model import Failure, Value

router = APIRouter(prefix="/v1/programs", tags=["programs"])
Key = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=128, pattern=r"^[!-~]+$")]


@router.post("", status_code=201, openapi_extra=takes(ProgramBody), responses=documented(201, model=ProgramReply))
async def submit(caller: CallerDep, query: Waiting, key: Key = None) -> Response:
    """Open a program with what it holds so far. With `wait` the values of its sinks come with the answer."""
    caller.check_wait(query.wait)
    runtime = caller.runtime
    taken: list[ProgramReply] = []
    with ExitStack() as watching:  # what is watched is not forgotten, however soon it ends

        async def act() -> str:
            program_id = runtime.new_program_id()
            event = await caller.read(
                ProgramBody, lambda body, mapper: mapper.submitted(body, program_id, caller.tenant)
            )
            await runtime.check_outputs(event)
            runtime.take(event)
            taken.append(_view(caller, program_id))
            if query.wait:
                watching.enter_context(runtime.watching(program_id, runtime.scheduler.program(program_id).sinks))
            await runtime.settled()
            return program_id

        program_id, again = await _once(caller, key, "programs", act)
        headers = {"location": f"/v1/programs/{program_id}"} | ({"idempotent-replayed": "true"} if again else {})
        reply = taken[0] if taken else await _reply(caller, program_id)
        if query.wait:
            cancel = program_id if query.cancel_on_disconnect else None
            reply = await caller.while_here(_with_sinks(caller, reply, query.wait), cancel)
        return answer(reply, 201, headers)


@router.get("", responses=documented(200, model=ProgramPage))
async def list_programs(caller: CallerDep, query: Paging) -> Response:
    """Programs, newest first."""
    await caller.runtime.settled()
    page = caller.runtime.owners.page(caller.tenant, query.cursor, query.limit + 1)
    shown = page[: query.limit]
    more = str(shown[-1][0]) if len(page) > len(shown) else None
    known = set(caller.runtime.scheduler.programs())
    return answer(ProgramPage(programs=[_view(caller, name) for _, name in shown if name in known], next=more))


@router.get("/{program_id}", responses=documented(200, model=ProgramReply))
async def get_program(caller: CallerDep, program_id: ProgramId) -> Response:
    """A program's state."""
    caller.check_program(program_id)
    return answer(await _reply(caller, program_id))


@router.patch("/{program_id}", openapi_extra=takes(PatchBody), responses=documented(200, model=ProgramReply))
async def change(caller: CallerDep, program_id: ProgramId) -> Response:
    """Change what the user wants of a program."""
    caller.check_program(program_id)
    event = await caller.read(PatchBody, lambda body, mapper: mapper.criteria_set(body, program_id))
    return answer(await _done(caller, program_id, event))


@router.delete("/{program_id}", responses=documented(200, model=ProgramReply))
async def cancel(caller: CallerDep, program_id: ProgramId) -> Response:
    """Cancel a program: what is queued is dropped, what runs is aborted."""
    caller.check_program(program_id)
    return answer(await _done(caller, program_id, Cancelled(program_id)))


@router.post(
    "/{program_id}/calls",
    status_code=201,
    openapi_extra=takes(CallsBody),
    responses=documented(201, model=ProgramReply),
)
async def add_calls(caller: CallerDep, program_id: ProgramId, key: Key = None) -> Response:
    """Add calls to a live program."""
    caller.check_program(program_id)
    done: list[ProgramReply] = []

    async def act() -> str:
        event = await caller.read(
            CallsBody, lambda body, mapper: mapper.calls_added(body, program_id), program_id=program_id
        )
        await caller.runtime.check_outputs(event)
        done.append(await _done(caller, program_id, event))
        return program_id

    _, again = await _once(caller, key, program_id, act)
    reply = done[0] if done else await _reply(caller, program_id)
    return answer(reply, 201, {"idempotent-replayed": "true"} if again else {})


@router.post("/{program_id}/close", responses=documented(200, model=ProgramReply))
async def close(caller: CallerDep, program_id: ProgramId) -> Response:
    """Say that no more calls will come."""
    caller.check_program(program_id)
    return answer(await _done(caller, program_id, Closed(program_id)))


@router.get("/{program_id}/graph", responses=documented(200, model=GraphReply))
async def graph(caller: CallerDep, program_id: ProgramId) -> Response:
    """A program's steps and edges, with state, objective, timing and tokens of each step."""
    caller.check_program(program_id)
    view = caller.runtime.scheduler.graph(program_id)
    await caller.runtime.settled()
    return await answer_large(lambda: to_wire.graph(view))


@router.get("/{program_id}/trace", responses=documented(200, model=TraceReply))
async def trace(caller: CallerDep, program_id: ProgramId) -> Response:
    """A program's steps on a time line: trace event JSON, for Perfetto."""
    caller.check_program(program_id)
    view, now_s = caller.runtime.scheduler.graph(program_id), caller.runtime.now_s()
    await caller.runtime.settled()
    return await answer_large(lambda: chrome_trace(view, now_s))


async def _once(caller: Caller, key: str | None, place: str, act: Callable[[], Awaitable[str]]) -> tuple[str, bool]:
    if key is None:
        return await act(), False
    return await caller.keys.once((caller.tenant, place, key), await caller.request.body(), act)


async def _done(caller: Caller, program_id: str, event: ClientEvent) -> ProgramReply:
    """Let an event happen to a program; the program as it is right after, since it may be forgotten soon."""
    caller.runtime.take(event)
    return await _reply(caller, program_id)


async def _reply(caller: Caller, program_id: str) -> ProgramReply:
    reply = _view(caller, program_id)
    await caller.runtime.settled()
    return reply


def _view(caller: Caller, program_id: str) -> ProgramReply:
    return to_wire.program(caller.runtime.scheduler.program(program_id), caller.runtime.now_s())


async def _with_sinks(caller: Caller, taken: ProgramReply, wait_s: float) -> ProgramReply:
    """A program with the values of its sinks. One without sinks is as it was when it was taken."""
    runtime = caller.runtime
    names = runtime.scheduler.program(taken.id).sinks if taken.variables else ()
    if not names:
        return taken.model_copy(update={"values": {}, "errors": {}})
    sinks = await runtime.variables(taken.id, names, wait_s)
    values, errors = {}, {}
    for sink in sinks:
        if isinstance(sink.outcome, Value):
            values[sink.name] = to_wire.text_of(sink.outcome)
        elif isinstance(sink.outcome, Failure):
            errors[sink.name] = to_wire.error(sink.outcome)
    return _view(caller, taken.id).model_copy(update={"values": values, "errors": errors})
