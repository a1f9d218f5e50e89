"""Keys: who may come in, and whose programs he sees. Plain ASGI; all is closed but what is listed here."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from parrot_server.api.early_answer import answer_early
from parrot_server.api.problems import problem

OPEN_PATHS = frozenset({"/healthz", "/readyz"})


class KeyGuard:
    """Lets in who sent a known key as `Authorization: Bearer KEY`, and notes the tenant. Without keys all are let in.

    Args:
        app: what is behind it.
        keys: tenants by key.
    """

    def __init__(self, app: ASGIApp, keys: Mapping[str, str]) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._keys or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        tenant = self._tenant(Headers(scope=scope).get("authorization", ""))
        if tenant is None:
            detail = "send a key of this server as `Authorization: Bearer KEY`"
            answer = problem(401, "unauthorized", detail, headers={"www-authenticate": "Bearer"})
            await answer_early(answer, scope, receive, send)
            return
        scope.setdefault("state", {})["tenant"] = tenant
        await self._app(scope, receive, send)

    def _tenant(self, authorization: str) -> str | None:
        """The tenant of a key; compares with every key, so that the time taken says nothing."""
        scheme, _, key_sent = authorization.partition(" ")
        sent = key_sent.strip().encode() if scheme.lower() == "bearer" else b""
        found = None
        for key, tenant in self._keys.items():
            if hmac.compare_digest(sent, key.encode()) and sent:
                found = tenant
        return found
