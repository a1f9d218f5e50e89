"""/v1/programs/{id}/variables: read, set, follow."""

from __future__ import annotations

from fastapi import APIRouter, Response

from parrot_sdk.wire import VariableBody, VariableReply
from parrot_server.api import to_wire
from parrot_server.api.caller import CallerDep
from parrot_server.api.openapi import takes
from parrot_server.api.queries import ProgramId, VariableName, Waiting
from parrot_server.api.replies import answer, answer_large, documented, variable_problem
from parrot_server.core.model import Failure, Value

LARGE_CHARACTERS = 65_536
router = APIRouter(prefix="/v1/programs/{program_id}/variables", tags=["variables"])


@router.get("/{name}", responses=documented(200, 202, model=VariableReply))
async def read(caller: CallerDep, program_id: ProgramId, name: VariableName, query: Waiting) -> Response:
    """A variable: 200 with its value, 202 when it is still unset after `wait` seconds, 424 with the error of its call."""
    caller.check_program(program_id)
    caller.check_wait(query.wait)
    work = caller.runtime.variable(program_id, name, query.wait)
    cancel = program_id if query.cancel_on_disconnect else None
    view = await (caller.while_here(work, cancel) if query.wait else work)
    reply = to_wire.variable(view)
    if isinstance(view.outcome, Failure):
        return variable_problem(program_id, reply, view.outcome)
    if isinstance(view.outcome, Value) and len(view.outcome.text) > LARGE_CHARACTERS:
        return await answer_large(lambda: reply)
    return answer(reply, 202 if view.outcome is None else 200)


@router.put("/{name}", openapi_extra=takes(VariableBody), responses=documented(200, model=VariableReply))
async def set_variable(caller: CallerDep, program_id: ProgramId, name: VariableName) -> Response:
    """Set an open variable, once; the same value again is fine."""
    caller.check_program(program_id)
    event = await caller.read(VariableBody, lambda body, mapper: mapper.variable_set(body, program_id, name))
    caller.runtime.take(event)
    return answer(to_wire.variable(await caller.runtime.variable(program_id, name)))
