"""/v1/functions: semantic functions, known by their content."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Path, Response
from fastapi.responses import JSONResponse

from parrot_sdk.template import parse
from parrot_sdk.wire import FunctionReply, NamedFunctionBody
from parrot_server.api import to_wire
from parrot_server.api.caller import Caller, CallerDep
from parrot_server.api.from_wire import function_spec
from parrot_server.api.openapi import takes
from parrot_server.api.queries import Registering
from parrot_server.api.replies import answer, documented
from parrot_server.core.events import Registered
from parrot_server.core.model import FunctionSpec
from parrot_server.errors import Refused

router = APIRouter(prefix="/v1/functions", tags=["functions"])


@router.post(
    "", status_code=201, openapi_extra=takes(NamedFunctionBody), responses=documented(200, 201, model=FunctionReply)
)
async def register(caller: CallerDep, query: Registering) -> Response:
    """Register a function: 201 the first time, 200 after. With `dry_run=true` it is only parsed."""
    spec = await caller.read(NamedFunctionBody, lambda body, mapper: function_spec(body.name, body))
    if query.dry_run:
        return answer(_reply(spec))
    known = caller.runtime.owners.functions(caller.tenant).get(spec.name) == spec.id
    if not known:
        _check_room(caller, spec.name)
        registered = Registered(spec, caller.tenant)
        await caller.runtime.check_outputs(registered)
        await caller.runtime.post(registered)
    return answer(_reply(spec), 200 if known else 201)


@router.get("")
async def list_functions(caller: CallerDep) -> Response:
    """The functions that the caller's tenant and the operator registered."""
    await caller.runtime.settled()
    named = caller.runtime.owners.functions(caller.tenant)
    specs = [replace(caller.runtime.scheduler.function(id), name=name) for name, id in named.items()]
    return JSONResponse({"functions": [_reply(spec).model_dump() for spec in specs]})


@router.get("/{function_id}", responses=documented(200, model=FunctionReply))
async def get_function(caller: CallerDep, function_id: Annotated[str, Path(max_length=128)]) -> Response:
    """A registered function with its segments."""
    await caller.runtime.settled()
    if not caller.runtime.owners.has_function(caller.tenant, function_id):
        raise Refused("unknown_function", f"no function {function_id!r} is registered", status=404)
    return answer(_reply(caller.runtime.scheduler.function(function_id)))


def _check_room(caller: Caller, name: str) -> None:
    most = caller.settings.functions
    names = caller.runtime.owners.functions(caller.tenant)
    if len(caller.runtime.scheduler.functions()) >= most or (name not in names and len(names) >= most):
        message = f"functions allows {most} registered functions: send others with the programs that use them"
        raise Refused("limit_exceeded", message)


def _reply(spec: FunctionSpec) -> FunctionReply:
    outputs = [name for name, _ in spec.outputs]
    return to_wire.function(spec, parse(spec.text, outputs, format=spec.format))
