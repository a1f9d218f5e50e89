"""OpenAI's routes of the scripted HTTP server, and the manners of vLLM, llama.cpp and SGLang on them."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from starlette.responses import PlainTextResponse, Response

from parrot_server.core.model import Piece, PieceKind, Prompt, Sampling, Usage
from parrot_server.engines.base import Done, GenerateEvent, Prefill, Request, Text
from parrot_server.engines.fake_http_wire import (
    MID_STREAM,
    Body,
    EventStream,
    Wire,
    break_stream,
    json_response,
    problem,
)
from parrot_server.errors import EngineError, Fault

if TYPE_CHECKING:
    from parrot_server.engines.fake_http import FakeServer, Route

BLOCK_TOKENS = 16
BLOCK_CHARACTERS = 64
STANDARD = {  # what OpenAI's own API takes, as far as anyone here sends it
    *("model", "messages", "prompt", "max_tokens", "max_completion_tokens", "temperature", "top_p", "stop", "seed"),
    *("stream", "stream_options", "n", "user", "response_format", "logprobs"),
}
IDS = itertools.count()


def openai_routes(flavour: str) -> dict[str, Route]:
    """The routes that a flavour has."""
    routes: dict[str, Route] = {
        "GET /v1/models": models,
        "POST /v1/chat/completions": chat_completions,
        "POST /v1/completions": completions,
    }
    if flavour == "vllm":
        routes |= {"GET /version": vllm_version, "GET /metrics": vllm_metrics, "POST /tokenize": tokenize}
    if flavour == "llama.cpp":
        routes |= {"GET /props": llama_props, "POST /tokenize": tokenize}
    return routes


def blocks(prompt: Sequence[int] | str, role: str | None = None) -> list[Piece]:
    """A prompt as pieces of the size of a cache block."""
    pieces = [] if role is None else [Piece(PieceKind.ROLE, role)]
    size = BLOCK_CHARACTERS if isinstance(prompt, str) else BLOCK_TOKENS
    for at in range(0, len(prompt), size):
        block = prompt[at : at + size]
        text, tokens = (block, 0) if isinstance(block, str) else (" ".join(map(str, block)) + " ", len(block))
        pieces.append(Piece(PieceKind.CONSTANT, text, tokens))
    return pieces


def chained(pieces: list[Piece]) -> Prompt:
    """Pieces with the identities of the beginnings that they end."""
    digests = itertools.accumulate(
        pieces,
        lambda digest, piece: hashlib.sha256(f"{digest}{piece.kind}{piece.text}".encode()).hexdigest(),
        initial="",
    )
    chat = any(piece.kind is PieceKind.ROLE for piece in pieces)
    return Prompt(tuple(pieces), tuple(itertools.islice(digests, 1, None)), chat)


async def models(server: FakeServer, body: Body) -> Response:
    """Which models there are. Only some servers say how long their context is."""
    spec = server.engine.spec
    manners: dict[str, Body] = {
        "openai": {"owned_by": "someone"},
        "vllm": {"owned_by": "vllm", "max_model_len": spec.context_tokens},
        "llama.cpp": {"owned_by": "llamacpp", "meta": {"n_ctx_train": 10 * spec.context_tokens}},
        "sglang": {"owned_by": "sglang", "max_model_len": spec.context_tokens},
    }
    cards = [{"id": name, "object": "model", **manners[server.flavour]} for name in spec.models]
    return json_response({"object": "list", "data": cards})


async def vllm_version(server: FakeServer, body: Body) -> Response:
    """By this a client knows vLLM."""
    return json_response({"version": "0.32.0"})


async def vllm_metrics(server: FakeServer, body: Body) -> Response:
    """The few of vLLM's metrics that tell its load."""
    load, spec = await server.engine.load(), server.engine.spec
    return PlainTextResponse(
        f'vllm:num_requests_running{{engine="0",model_name="fake"}} {load.running}.0\n'
        f'vllm:num_requests_waiting{{engine="0",model_name="fake"}} {load.waiting}.0\n'
        f'vllm:kv_cache_usage_perc{{engine="0",model_name="fake"}} {load.used_tokens / spec.kv_tokens}\n'
        f'vllm:cache_config_info{{block_size="16",enable_prefix_caching="{spec.shares_prefixes}",'
        f'num_gpu_blocks="{spec.kv_tokens // 16}"}} 1.0\n'
    )


async def llama_props(server: FakeServer, body: Body) -> Response:
    """By this a client knows llama.cpp; a slot has the context that it says."""
    spec = server.engine.spec
    return json_response(
        {
            "default_generation_settings": {"n_ctx": spec.context_tokens},
            "total_slots": spec.max_running,
            "model_path": "x.gguf",
        }
    )


async def tokenize(server: FakeServer, body: Body) -> Response:
    """Token ids of a text: vLLM and SGLang call it `prompt`, llama.cpp `content`."""
    if server.tokenize is None:
        return problem(404, "Not Found", "not_found")
    return json_response({"tokens": server.tokenize(body["content"] if "content" in body else body["prompt"])})


async def chat_completions(server: FakeServer, body: Body) -> Response:
    """One answer to a conversation."""
    pieces = [piece for message in body["messages"] for piece in blocks(message["content"], message["role"])]
    if not body.get("continue_final_message"):
        pieces.append(Piece(PieceKind.ROLE, "assistant"))
    return await answer(server, body, chained(pieces), chat=True)


async def completions(server: FakeServer, body: Body) -> Response:
    """The continuation of a text, or of token ids."""
    return await answer(server, body, chained(blocks(body["prompt"])), chat=False)


async def answer(server: FakeServer, body: Body, prompt: Prompt, chat: bool) -> Response:
    """Refuse what the flavour refuses, else generate, streamed or not."""
    if (refusal := _refusal(server, body)) is not None:
        return refusal
    wire = server.wire()
    if wire.status != 200:
        return Response(wire.body, wire.status, {"content-type": "application/json", **dict(wire.headers)})
    request = _request(server, body, prompt)
    events = server.engine.generate(request)
    await anext(events)  # an error before the first event is a status, not an event
    shape = _Shape(request.rid, body["model"], chat)
    if not body.get("stream"):
        return json_response(await _whole(server, shape, events))
    return EventStream(_streamed(server, body, wire, shape, events), wire.split_bytes)


def _refusal(server: FakeServer, body: Body) -> Response | None:
    if (max_tokens := _max_tokens(body)) < 1:
        return problem(400, f"max_tokens must be at least 1, got {max_tokens}.", "BadRequestError")
    if body["model"] not in server.engine.spec.models:
        return problem(404, f"The model `{body['model']}` does not exist.", "NotFoundError")
    if server.flavour == "openai" and (unknown := sorted(set(body) - STANDARD)):
        return problem(400, f"Unrecognized request argument supplied: {unknown[0]}", "invalid_request_error")
    if body.get("priority") and not server.settings.get("priority", True):
        return problem(
            400, f"Got priority {body['priority']} but priority scheduling is not enabled.", "BadRequestError"
        )
    return None


def _max_tokens(body: Body) -> int:
    return int(next((body[key] for key in ("max_tokens", "max_completion_tokens") if key in body), 16))


def _request(server: FakeServer, body: Body, prompt: Prompt) -> Request:
    stop = body.get("stop") or ()
    structured = body.get("structured_outputs") or {}
    schema = structured.get("json") or body.get("json_schema")
    if form := body.get("response_format"):
        schema = form["json_schema"]["schema"]
    choices = structured.get("choice")
    if "grammar" in body:
        choices = [json.loads(word) for word in body["grammar"].removeprefix("root ::= ").split(" | ")]
    sampling = Sampling(
        max_tokens=_max_tokens(body),
        temperature=body.get("temperature", 1.0),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        seed=body.get("seed"),
        ignore_eos=bool(body.get("ignore_eos")) and server.flavour != "openai",
        schema=json.dumps(schema) if schema else None,
        choices=tuple(choices) if choices else None,
    )
    sign = {"vllm": -1, "sglang": -1 if server.settings.get("schedule_low_priority_values_first") else 1}
    priority = sign.get(server.flavour, 0) * body.get("priority", 0)
    return Request(f"cmpl-{next(IDS)}", body["model"], prompt, sampling, body.get("cache_salt", ""), priority)


class _Shape:
    """The shapes of one answer's chunks."""

    def __init__(self, id: str, model: str, chat: bool) -> None:
        self.id, self.model, self.chat = id, model, chat

    def chunk(self, delta: Body | None, finish: str | None = None, usage: Body | None = None) -> Body:
        """One chunk; without a delta it bears usage alone."""
        choices: list[Body] = []
        if delta is not None:
            content = {"delta": delta} if self.chat else {"text": delta.get("content") or ""}
            choices = [{"index": 0, **content, "finish_reason": finish, "logprobs": None}]
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return {"id": self.id, "object": kind, "model": self.model, "choices": choices, "usage": usage, "surprise": [1]}

    def usage(self, usage: Usage, details: bool) -> Body:
        """Token counts."""
        total = usage.prompt_tokens + usage.output_tokens
        counts = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.output_tokens, "total_tokens": total}
        return counts | ({"prompt_tokens_details": {"cached_tokens": usage.cached_tokens}} if details else {})


def _details(server: FakeServer) -> bool:
    return bool(server.settings.get("prompt_tokens_details", True))


async def _whole(server: FakeServer, shape: _Shape, events: AsyncIterator[GenerateEvent]) -> Body:
    texts: list[str] = []
    async for event in events:
        if isinstance(event, Text):
            texts.append(event.text)
        if isinstance(event, Done):
            text = "".join(texts)
            content = {"message": {"role": "assistant", "content": text}} if shape.chat else {"text": text}
            choice = {"index": 0, **content, "finish_reason": event.finish}
            return {"id": shape.id, "choices": [choice], "usage": shape.usage(event.usage, _details(server))}
    raise EngineError(Fault.ENGINE, "stream_broken", "the scripted engine gave no end")


async def _streamed(
    server: FakeServer, body: Body, wire: Wire, shape: _Shape, events: AsyncGenerator[GenerateEvent, None]
) -> AsyncGenerator[str, None]:
    options = body.get("stream_options") or {}
    asked = "each" if options.get("continuous_usage_stats") else "last" if options.get("include_usage") else "none"
    where = wire.usage or asked
    details = _details(server)
    said = Usage()
    texts = 0
    yield json.dumps(shape.chunk({"role": "assistant", "content": ""}))
    for thought in wire.reasoning:
        yield json.dumps(shape.chunk({"reasoning_content": thought, "content": None}))
    try:
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Prefill):
                    said = Usage(event.prompt_tokens, event.cached_tokens)
                elif isinstance(event, Text):
                    if texts == wire.after and wire.fault in MID_STREAM:
                        yield await break_stream(wire)
                    texts += 1
                    said = Usage(said.prompt_tokens, said.cached_tokens, event.output_tokens)
                    usage = shape.usage(said, details) if where == "each" else None
                    yield json.dumps(shape.chunk({"content": event.text}, usage=usage), ensure_ascii=False)
                    if wire.null_content:
                        yield json.dumps(shape.chunk({"content": None}))
                elif isinstance(event, Done):
                    if wire.fault != "no_finish":
                        yield json.dumps(shape.chunk({}, finish=event.finish))
                    if where != "none":
                        yield json.dumps(shape.chunk(None, usage=shape.usage(event.usage, details)))
    except EngineError as error:
        yield json.dumps({"error": {"message": error.message, "type": error.type, "code": 500}})
    if wire.fault != "no_done":
        yield "[DONE]"
