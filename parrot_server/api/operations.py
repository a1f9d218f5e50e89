"""For operators: engines, health, metrics."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from parrot_server.api.caller import CallerDep
from parrot_server.api.problems import problem

router = APIRouter(tags=["operations"])


@router.get("/v1/engines")
async def engines(caller: CallerDep) -> Response:
    """Engines and what they can do; those that never came up with the reason why."""
    known = {view.id: asdict(view) for view in caller.runtime.scheduler.engines()}
    for name, failure in caller.runtime.engine_failures.items():
        known.setdefault(name, {"id": name, "up": False})["message"] = str(failure)
    return JSONResponse({"engines": list(known.values())})


@router.get("/healthz")
async def healthz() -> Response:
    """The server answers."""
    return JSONResponse({"status": "ok"})


@router.get("/readyz")
async def readyz(caller: CallerDep) -> Response:
    """Whether there is an engine to run calls on: 503 while there is none."""
    if any(view.up for view in caller.runtime.scheduler.engines()):
        return JSONResponse({"status": "ready"})
    reasons = [str(failure) for failure in caller.runtime.engine_failures.values()]
    detail = "; ".join(reasons) or "no engine is up yet"
    return problem(503, "no_engine", detail, retryable=True, headers={"retry-after": "1"})


@router.get("/metrics")
async def metrics(caller: CallerDep) -> Response:
    """Prometheus metrics."""
    return Response(caller.runtime.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")
