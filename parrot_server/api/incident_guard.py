"""The outermost middleware: a request id for each request, and an answer to our own faults. Plain ASGI."""

from __future__ import annotations

import asyncio
import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parrot_server.api.early_answer import answer_early
from parrot_server.api.problems import problem
from parrot_server.incident import record_incident

_REQUEST_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class IncidentGuard:
    """Gives each request an id (the client's own, if it sent a sound one), and answers our own faults with a 500."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = Headers(scope=scope).get("x-request-id") or secrets.token_hex(8)
        if not _REQUEST_ID.fullmatch(request_id):
            detail = "x-request-id: at most 128 letters, digits, dots, dashes and underscores"
            await answer_early(problem(400, "bad_value", detail, at="headers.x-request-id"), scope, receive, send)
            return
        begun = False

        async def send_with_id(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except ClientDisconnect:
            return  # nobody is there to be answered
        except asyncio.CancelledError:  # the server has stopped, and this request would not end
            if begun:
                raise
            await problem(503, "closing", "the server is shutting down: ask again later")(scope, receive, send_with_id)
        except Exception as error:  # noqa: BLE001 - the outermost place: logged, and the client gets its answer
            incident = record_incident(error, f"answering {scope['method']} (request {request_id})")
            if not begun:
                detail = f"a fault in the server; its log says more under incident {incident}"
                await problem(500, "internal_error", detail)(scope, receive, send_with_id)
