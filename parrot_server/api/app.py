"""The REST face: routes, and what stands around them."""

from __future__ import annotations

from fastapi import FastAPI

from parrot_server.api import functions, openapi, operations, problems, programs, streams, variables
from parrot_server.api.body_limit import BodyLimit
from parrot_server.api.idempotency import IdempotencyKeys
from parrot_server.api.incident_guard import IncidentGuard
from parrot_server.api.key_guard import KeyGuard
from parrot_server.config import Settings
from parrot_server.runtime import Runtime


def create_app(runtime: Runtime, settings: Settings) -> FastAPI:
    """The app over a runtime, which the caller starts and closes."""
    app = FastAPI(title="Parrot", description="Serves LLM programs.", docs_url=None, redoc_url=None)
    app.state.runtime = runtime
    app.state.settings = settings
    app.state.keys = IdempotencyKeys()
    for part in (functions, programs, variables, streams, operations):
        app.include_router(part.router)
    problems.install(app)
    openapi.install(app)
    # The last one added is the outermost.
    app.add_middleware(BodyLimit, body_bytes=settings.body_bytes)
    app.add_middleware(KeyGuard, keys=settings.api_keys)
    app.add_middleware(IncidentGuard)
    return app
