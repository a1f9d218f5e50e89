"""SGLang's own routes of the scripted HTTP server, in the shapes of SGLang 0.5.23."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from parrot_server.core.model import Sampling, Tier, Usage
from parrot_server.engines.base import Done, Prefill, Request, Text
from parrot_server.engines.fake_http_openai import blocks, chained, tokenize
from parrot_server.engines.fake_http_wire import MID_STREAM, Body, EventStream, Wire, break_stream, json_response
from parrot_server.errors import EngineError, Fault

if TYPE_CHECKING:
    from parrot_server.engines.fake_http import FakeServer, Route

RIDS = itertools.count()
FOREVER_S = 1e9
ABORTED: Body = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}


def sglang_routes() -> dict[str, Route]:
    """SGLang's own routes."""
    return {
        "GET /ready": ready,
        "GET /server_info": server_info,
        "GET /model_info": model_info,
        "GET /v1/loads": loads,
        "POST /generate": generate,
        "POST /abort_request": abort_request,
        "POST /open_session": open_session,
        "POST /close_session": close_session,
        "POST /v1/tokenize": tokenize,
    }


async def ready(server: FakeServer, body: Body) -> Response:
    """Up."""
    return Response(b"")


async def server_info(server: FakeServer, body: Body) -> Response:
    """What it was started with: all that helps, unless the settings say otherwise."""
    spec = server.engine.spec
    info: dict[str, Any] = {
        "version": "0.5.23",
        "enable_session_radix_cache": True,
        "enable_priority_scheduling": True,
        "schedule_low_priority_values_first": False,
        "abort_on_priority_when_disabled": False,
        "schedule_policy": "fcfs",
        "disable_radix_cache": False,
        "enable_metrics": True,
        "enable_cache_report": True,
        "grammar_backend": "xgrammar",
        "radix_eviction_policy": "lru",
        "max_running_requests": spec.max_running,
        "max_total_num_tokens": spec.kv_tokens,
        "max_req_input_len": min(spec.context_tokens, spec.kv_tokens - 6),
        "dp_size": 1,
    }
    return json_response(info | server.settings)


async def model_info(server: FakeServer, body: Body) -> Response:
    """Which model it serves."""
    return json_response({"model_path": "/models/fake", "served_model_name": server.engine.spec.models[0]})


async def loads(server: FakeServer, body: Body) -> Response:
    """How busy it is."""
    load, spec = await server.engine.load(), server.engine.spec
    core = {
        "dp_rank": 0,
        "num_running_reqs": load.running,
        "num_waiting_reqs": load.waiting,
        "num_used_tokens": load.used_tokens,
        "max_total_num_tokens": spec.kv_tokens,
        "max_running_requests": spec.max_running,
    }
    return json_response({"loads": [core]})


async def generate(server: FakeServer, body: Body) -> Response:
    """One generation. Errors come inside a 200 stream, as SGLang's do."""
    wire = server.wire()
    if wire.status != 200:
        return Response(wire.body, wire.status, {"content-type": "application/json", **dict(wire.headers)})
    request = _request(server, body)
    if not body.get("stream"):
        async with aclosing(_streamed(server, body, wire, request)) as events:
            chunks = [chunk async for chunk in events]
        last: Body = json.loads(chunks[-2])
        return json_response(last, 400 if "error" in last else 200)
    return EventStream(_streamed(server, body, wire, request), wire.split_bytes)


def _request(server: FakeServer, body: Body) -> Request:
    how = body.get("sampling_params") or {}
    stop = how.get("stop") or ()
    sampling = Sampling(
        max_tokens=how.get("max_new_tokens", 128),
        temperature=how.get("temperature", 1.0),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        keep_stop=bool(how.get("no_stop_trim")),
        ignore_eos=bool(how.get("ignore_eos")),
        schema=how.get("json_schema"),
        choices=tuple(how["regex"].strip("()").replace("\\", "").split("|")) if how.get("regex") else None,
    )
    prompt = chained(blocks(body["input_ids"] if body.get("input_ids") is not None else body["text"]))
    sign = -1 if server.settings.get("schedule_low_priority_values_first") else 1
    priority = sign * (body.get("priority") or 0)
    salt = f"{body.get('cache_salt') or ''}/{body.get('extra_key') or ''}"
    return Request(body.get("rid") or f"rid-{next(RIDS)}", "", prompt, sampling, salt, priority)


async def _streamed(server: FakeServer, body: Body, wire: Wire, request: Request) -> AsyncGenerator[str, None]:
    said, text, texts = Usage(), "", 0
    incremental = bool(server.settings.get("incremental_streaming_output"))
    try:
        async with aclosing(server.engine.generate(request)) as events:
            async for event in events:
                if isinstance(event, Prefill):
                    said = Usage(event.prompt_tokens, event.cached_tokens)
                elif isinstance(event, Text):
                    if texts == wire.after and wire.fault in MID_STREAM:
                        yield await break_stream(wire)
                    texts += 1
                    text = event.text if incremental else text + event.text
                    said = Usage(said.prompt_tokens, said.cached_tokens, event.output_tokens)
                    yield _chunk(request, text, said, None)
                elif isinstance(event, Done):
                    await _tag(server, body, request)
                    if wire.fault != "no_finish":
                        yield _chunk(request, "" if incremental else text, event.usage, _finish(event))
    except EngineError as error:
        yield _chunk(request, text, said, ABORTED) if error.type == "aborted" else _error(error)
    if wire.fault != "no_done":
        yield "[DONE]"


def _error(error: EngineError) -> str:
    status = 400 if error.fault is Fault.CALL else 500
    message = error.message.replace("the context", "the model's context length")
    return json.dumps({"error": {"message": message, "type": "invalid_request_error", "code": status}})


async def _tag(server: FakeServer, body: Body, request: Request) -> None:
    """A request that bears a session's id leaves its prompt referenced by that session."""
    session = body.get("session_id")
    if session and server.settings.get("enable_session_radix_cache", True):
        hold_s, _ = server.sessions.get(session, (FOREVER_S, ""))
        server.sessions[session] = hold_s, request.salt
        await server.engine.keep(session, request.prompt, "", request.salt, Tier.DEVICE, hold_s)


async def abort_request(server: FakeServer, body: Body) -> Response:
    """Let a request go; an unknown one is ignored."""
    server.engine.abort(body["rid"])
    return Response(b"")


async def open_session(server: FakeServer, body: Body) -> Response:
    """A session that ends by itself."""
    session = body["session_id"]
    if session in server.sessions:
        return json_response({"error": {"message": "Failed to open the session."}}, 400)
    server.sessions[session] = body.get("timeout") or FOREVER_S, ""
    return json_response(session)


async def close_session(server: FakeServer, body: Body) -> Response:
    """Its references go; an unknown one is ignored."""
    if closed := server.sessions.pop(body["session_id"], None):
        await server.engine.keep(body["session_id"], None, "", closed[1], Tier.NONE, 0.0)
    return Response(b"")


def _finish(done: Done) -> Body:
    if done.finish == "length":
        return {"type": "length", "length": done.usage.output_tokens}
    return {"type": "stop", "matched": done.stop if done.stop is not None else 2}


def _chunk(request: Request, text: str, usage: Usage, finish: Body | None) -> str:
    meta = {
        "id": request.rid,
        "finish_reason": finish,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "cached_tokens": usage.cached_tokens,
        "queue_time": 0.001,
        "num_retractions": 0,
    }
    return json.dumps({"text": text, "output_ids": [], "meta_info": meta}, ensure_ascii=False)
