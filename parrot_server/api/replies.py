"""How handlers answer with the contract's models."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from fastapi import Response
from pydantic import BaseModel

from parrot_sdk.wire import Problem, VariableReply
from parrot_server.api.problems import problem
from parrot_server.core.model import Failure


def answer(reply: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A reply as JSON; what is None is left out."""
    return Response(_json(reply), status, headers=headers, media_type="application/json")


async def answer_large(make: Callable[[], BaseModel]) -> Response:
    """A reply that may have thousands of parts, made and written in a thread."""
    content = await asyncio.to_thread(lambda: _json(make()))
    return Response(content, media_type="application/json")


def variable_problem(program_id: str, variable: VariableReply, failure: Failure) -> Response:
    """Why a variable has no value: 424, or 410 when its program expired or is no longer kept."""
    return problem(
        410 if failure.type in ("expired", "forgotten") else 424,
        failure.type,
        failure.message,
        program_id=program_id,
        call_id=failure.call,
        retryable=failure.retryable,
        variable=variable,
    )


def documented(*statuses: int, model: type[BaseModel]) -> dict[int | str, dict[str, object]]:
    """For the OpenAPI document: what a route answers, and that its errors are problems."""
    replies: dict[int | str, dict[str, object]] = {status: {"model": model} for status in statuses}
    return replies | {"4XX": {"model": Problem, "description": "application/problem+json"}}


def _json(reply: BaseModel) -> str:
    return reply.model_dump_json(by_alias=True, exclude_none=True)
