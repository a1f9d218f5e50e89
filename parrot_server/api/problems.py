"""Errors as RFC 9457 says: application/problem+json with a stable `type`, whatever went wrong and wherever."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from parrot_sdk.errors import BodyError, TemplateError
from parrot_sdk.wire import Problem, VariableReply
from parrot_server.errors import Refused

_FALLBACK_TYPES = {404: "not_found", 405: "method_not_allowed"}


def problem(
    status: int,
    type: str,
    detail: str,
    *,
    program_id: str | None = None,
    call_id: str | None = None,
    retryable: bool = False,
    at: str = "",
    variable: VariableReply | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """A problem as a reply. `detail` names the thing, the place and the way out."""
    body = Problem(
        type=type,
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        program_id=program_id,
        call_id=call_id,
        retryable=retryable,
        at=at,
        variable=variable,
    )
    content = body.model_dump_json(exclude_none=True)
    return Response(content, status, headers=headers, media_type="application/problem+json")


def install(app: FastAPI) -> None:
    """Let the app answer every error that a handler raises with a problem."""
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(BodyError, _body_error)
    app.add_exception_handler(TemplateError, _template_error)
    app.add_exception_handler(RequestValidationError, _bad_parameter)
    app.add_exception_handler(HTTPException, _http_error)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return problem(
        error.status,
        error.type,
        error.message,
        program_id=request.path_params.get("program_id"),
        call_id=error.call,
        retryable=error.status == HTTPStatus.SERVICE_UNAVAILABLE,
        at=error.at,
        headers={"retry-after": "1"} if error.status == HTTPStatus.SERVICE_UNAVAILABLE else None,
    )


def _body_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, BodyError)
    status = 400 if error.type == "bad_json" else 422
    return problem(status, error.type, str(error), program_id=request.path_params.get("program_id"), at=error.at)


def _template_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, TemplateError)
    return problem(422, "template_error", str(error), at="template")


def _bad_parameter(request: Request, error: Exception) -> Response:
    """A path, query or header that does not fit."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    at = ".".join(str(part) for part in first["loc"])[:128]
    if first["type"] == "extra_forbidden":
        return problem(422, "unknown_field", f"{at}: there is no such parameter", at=at)
    return problem(422, "bad_value", f"{at}: {first['msg']}", at=at)


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    type = _FALLBACK_TYPES.get(error.status_code, "http_error")
    detail = f"{request.method} {request.url.path[:200]}: {error.detail}"
    return problem(error.status_code, type, detail, headers=error.headers)
