"""Any server that speaks OpenAI's API: vLLM, llama.cpp's server, LiteLLM, hosted models."""

from __future__ import annotations

import asyncio
import math
import re
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from parrot_server.core.cost import estimate_tokens
from parrot_server.core.model import CostModel, EngineSpec, Piece, PieceKind, Prompt, Sampling, Tier
from parrot_server.engines import messages
from parrot_server.engines.base import Done, GenerateEvent, Load, Prefill, Request, Text
from parrot_server.engines.exact import SAMPLE, check_fits, check_same_tokenizer, encode
from parrot_server.engines.finding import Finding, isolation
from parrot_server.engines.http import DONE, Body, EngineHTTP, Patience, event_of, json_of
from parrot_server.engines.http_errors import broken
from parrot_server.engines.openai_flavour import OPENAI, OTHER, Flavour, findings, flavour_named, probe, sampling_fields
from parrot_server.engines.openai_stream import StreamedAnswer
from parrot_server.engines.stops import StopFilter
from parrot_server.engines.tokens import PromptTokenizer
from parrot_server.errors import EngineError, Fault, SetupError

CONTEXT_TOKENS = 8_192
MAX_RUNNING = 16
TRUST_S = 30.0  # an engine that answered so lately is there


class OpenAIEngine:
    """An engine behind an OpenAI-compatible server. What kind of server it is, is asked at start.

    Args:
        id: its name among the engines.
        url: base URL, with or without `/v1`.
        model: the model that calls get which name none; None: the first that the server lists.
        api_key: sent as a bearer token.
        tokenizer: of the model; with it, and a server that takes token ids, prompts are exact.
        context_tokens: the model's context, where the server does not say; 8,192 then.
        kv_tokens: room for KV in all, where the server does not say; enough for `max_running` contexts then.
        max_running: calls at once, where the server does not say; 16 then.
        flavour: openai, vllm, llama.cpp or sglang, where the server hides what it is, or its manners themselves.
        control_tokens: texts that no value may hold when messages are sent; None: those of all common model families.
        cost: what its work costs.
        patience: how long to wait for it.

    Raises:
        SetupError: the URL or the flavour is none.
    """

    def __init__(
        self,
        id: str,
        url: str,
        model: str | None = None,
        api_key: str | None = None,
        tokenizer: PromptTokenizer | None = None,
        *,
        context_tokens: int | None = None,
        kv_tokens: int | None = None,
        max_running: int | None = None,
        flavour: str | Flavour | None = None,
        control_tokens: Sequence[str] | None = None,
        cost: CostModel | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.id = id
        self._http = EngineHTTP(id, url, api_key, patience or Patience())
        self._patience = patience or Patience()
        self._model = model
        self._tokenizer = tokenizer
        self._context_tokens = context_tokens
        self._kv_tokens = kv_tokens
        self._max_running = max_running
        self._said_flavour = flavour if isinstance(flavour, Flavour) else flavour_named(flavour)
        self._control = messages.control_pattern(control_tokens)
        self._cost = cost or CostModel()
        self._flavour: Flavour
        self._spec: EngineSpec | None = None
        self._dropped: set[str] = set()
        self._running = 0
        self._heard_s = -math.inf

    @property
    def flavour(self) -> str:
        """The kind of server, after `start`."""
        return self._flavour.name

    async def start(self) -> EngineSpec:
        """Ask the server what it is. Raises EngineError; SetupError when the tokenizer is another model's."""
        server = await probe(self._http, self._said_flavour)
        self._flavour = server.flavour
        models = (self._model,) if self._model else server.models
        if not models:
            raise SetupError(f"engine {self.id} lists no models: say which one it serves")
        if self._model and server.models and self._model not in server.models:
            raise SetupError(f"engine {self.id} does not serve {self._model!r} but {', '.join(server.models)}")
        await self._check_tokenizer(models[0])
        exact = self._exact_tokenizer()
        context_tokens = self._context_tokens or server.context_tokens or CONTEXT_TOKENS
        max_running = self._max_running or server.max_running or MAX_RUNNING
        self._spec = EngineSpec(
            self.id,
            "openai",
            models=models,
            context_tokens=context_tokens,
            kv_tokens=self._kv_tokens or server.kv_tokens or context_tokens * max_running,
            max_running=max_running,
            can_pin=self._flavour.shares_prefixes,
            shares_prefixes=self._flavour.shares_prefixes,
            continues=exact is not None or self._flavour.continues,
            chat=exact is None or exact.chat is not None,
            schemas=self._flavour.grammars,
            cost=self._cost,
        )
        self._dropped.clear()  # it may be another server by now
        self._heard()
        return self._spec

    async def generate(self, request: Request) -> AsyncGenerator[GenerateEvent, None]:
        """Stream one answer. Stop strings are cut here, and then the stream is closed, which makes the server stop."""
        spec = self._up()
        path, body = await self._body(spec, request.prompt, request.sampling, request.model, request.salt)
        extras: Body = {"stream_options": {"include_usage": True}}
        if self._flavour.counts_on:
            extras["stream_options"]["continuous_usage_stats"] = True
        if self._flavour.priority_sign and request.priority:
            extras["priority"] = self._flavour.priority_sign * request.priority
        if self._flavour.named_calls:
            extras["rid"] = request.rid
        answer = StreamedAnswer(self.id, _estimate(request.prompt))
        self._running += 1
        try:
            async with aclosing(self._read(path, body | {"stream": True}, extras, answer, request.sampling)) as events:
                async for event in events:
                    yield event
        except EngineError as error:
            if error.fault is not Fault.CALL:
                self._heard_s = -math.inf
            raise
        finally:
            self._running -= 1

    async def check(self, sampling: Sampling) -> None:
        """The server says so when it is asked to."""

    async def keep(self, prefix: str, prompt: Prompt | None, model: str, salt: str, tier: Tier, hold_s: float) -> int:
        """Warm a prefix by a call for one token. The server holds it as long as it likes; there is nothing to let go of."""
        if tier is not Tier.DEVICE or prompt is None:
            return 0
        path, body = await self._body(self._up(), prompt, Sampling(max_tokens=1), model, salt, head=True)
        answer = json_of(self.id, await self._http.post(path, body, self._patience.first_token_s))
        warmed = StreamedAnswer(self.id, _estimate(prompt))
        warmed.take(answer)
        return warmed.total().prompt_tokens

    async def pause(self, rid: str) -> None:
        """It cannot."""

    async def resume(self, rid: str, grant_tokens: int | None) -> None:
        """It cannot."""

    async def load(self) -> Load:
        """What the server's metrics say, else what is running for us here. Raises EngineError when it is gone."""
        spec = self._up()
        if self._flavour.metrics:
            text = await self._http.get_text("/metrics")
            running, waiting = (_metric(text, f"vllm:num_requests_{name}") for name in ("running", "waiting"))
            used = _metric(text, "vllm:kv_cache_usage_perc") * spec.kv_tokens
            return Load(int(running), int(waiting), int(used))
        if asyncio.get_running_loop().time() - self._heard_s > TRUST_S:
            await self._http.get("/v1/models")
            self._heard()
        return Load(self._running, 0, 0)

    async def close(self) -> None:
        """Close all connections; servers stop what they did for them."""
        await self._http.close()

    async def doctor(self) -> tuple[Finding, ...]:
        """What it can and cannot do, and what would enable more. Sends three tiny prompts. Raises EngineError."""
        spec = self._up()
        exact = self._exact_tokenizer() is not None
        return (*findings(self._flavour, exact), await self._examine_isolation(spec))

    def _up(self) -> EngineSpec:
        if self._spec is None:
            raise EngineError(Fault.ENGINE, "engine_gone", f"engine {self.id} was not started")
        return self._spec

    def _heard(self) -> None:
        self._heard_s = asyncio.get_running_loop().time()

    def _exact_tokenizer(self) -> PromptTokenizer | None:
        return self._tokenizer if self._flavour.takes_ids else None

    async def _examine_isolation(self, spec: EngineSpec) -> Finding:
        """Whether salts separate tenants: the same prompt is found again under its own salt and under no other."""
        if self._flavour in (OPENAI, OTHER):
            return Finding("isolation", None, "nobody knows what it reuses across tenants", "an engine a tenant")
        text = " ".join(secrets.token_hex(2) for _ in range(100))
        prompt = Prompt((Piece(PieceKind.CONSTANT, text),), ("examination",), chat=False)
        mine, others = (f"examination-{secrets.token_hex(8)}" for _ in range(2))
        cached = []
        for salt in (mine, mine, others):
            path, body = await self._body(spec, prompt, Sampling(max_tokens=1), "", salt)
            answer = StreamedAnswer(self.id, 0)
            answer.take(json_of(self.id, await self._http.post(path, body, self._patience.first_token_s)))
            cached.append(answer.total().cached_tokens)
        return isolation(cached)

    async def _check_tokenizer(self, model: str) -> None:
        tokenizer = self._exact_tokenizer()
        if tokenizer is None or not self._flavour.tokenize_path:
            return
        body = {"model": model, self._flavour.tokenize_key: SAMPLE, "add_special_tokens": False, "add_special": False}
        try:
            said = json_of(self.id, await self._http.post(self._flavour.tokenize_path, body))
        except EngineError as error:
            if error.fault is not Fault.CALL:
                raise
            return  # it has no such route, so this cannot be checked
        check_same_tokenizer(self.id, tokenizer, said.get("tokens") or [])

    async def _body(
        self, spec: EngineSpec, prompt: Prompt, sampling: Sampling, model: str, salt: str, head: bool = False
    ) -> tuple[str, Body]:
        """Where to send a prompt, or the head of longer ones, and as what. Raises EngineError when it is no good."""
        if model and model not in spec.models:
            raise EngineError(Fault.CALL, "unknown_model", f"engine {self.id} does not serve the model {model!r}")
        body: Body = {"model": model or spec.models[0]}
        tokenizer = self._exact_tokenizer()
        if tokenizer is not None:
            tokens = await encode(tokenizer, prompt)
            body["prompt"] = tokens.ids[: tokens.covered[-1]] if head else tokens.ids
            check_fits(self.id, len(body["prompt"]), sampling.max_tokens, spec.context_tokens)
        else:
            messages.refuse_control(self.id, prompt, self._control)
            check_fits(self.id, 1, sampling.max_tokens, spec.context_tokens)  # how long it is, only the server knows
            body |= {"messages": messages.messages(prompt)} if prompt.chat else {"prompt": messages.text(prompt)}
        if "messages" in body and body["messages"][-1]["role"] == "assistant":
            if not spec.continues:
                message = f"engine {self.id} cannot go on with an assistant's turn that has text in it"
                raise EngineError(Fault.CALL, "cannot_continue", message)
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        if self._flavour.salts and salt:
            body["cache_salt"] = salt
        chat = "messages" in body
        path = "/v1/chat/completions" if chat else "/v1/completions"
        return path, body | sampling_fields(self._flavour, sampling, chat)

    async def _read(
        self, path: str, body: Body, extras: Body, answer: StreamedAnswer, sampling: Sampling
    ) -> AsyncGenerator[GenerateEvent, None]:
        stops = StopFilter(sampling.stop, sampling.keep_stop)
        told, ended = False, False
        async with aclosing(self._events(path, body, extras)) as events:
            async for data in events:
                if data == DONE:
                    ended = True
                    continue
                text = answer.take(event_of(self.id, data))
                self._heard()
                if answer.tells_prefill and not told:
                    told = True
                    usage = answer.total()
                    yield Prefill(usage.prompt_tokens, usage.cached_tokens)
                if shown := stops.feed(text):
                    yield Text(shown, answer.output_tokens)
                if stops.fired is not None:
                    break
        if stops.fired is None:
            if not ended:
                raise broken(self.id, "it ended without its last line")
            answer.check_whole()
            if rest := stops.flush():
                yield Text(rest, answer.output_tokens)
        yield Done(
            "length" if answer.finish == "length" and stops.fired is None else "stop", answer.total(), stops.fired
        )

    async def _events(self, path: str, body: Body, extras: Body) -> AsyncGenerator[str, None]:
        """The events of a stream. A server that refuses a call with our extras gets it without them, from then on."""
        droppable = [
            extra for extra in ("priority", "stream_options") if extra in extras and extra not in self._dropped
        ]
        attempts = [set(), *({extra} for extra in droppable), *([set(droppable)] if len(droppable) > 1 else [])]
        for last, dropped in enumerate(attempts, 1 - len(attempts)):
            sent = {key: value for key, value in extras.items() if key not in self._dropped | dropped}
            begun = False
            try:
                async with aclosing(self._http.events(path, body | sent)) as events:
                    async for data in events:
                        begun = True
                        self._dropped |= dropped
                        yield data
                return
            except EngineError as error:
                if begun or error.type != "engine_refused" or last == 0:
                    raise


def _estimate(prompt: Prompt) -> int:
    return sum(
        piece.tokens or (4 if piece.kind is PieceKind.ROLE else estimate_tokens(piece.text)) for piece in prompt.pieces
    )


def _metric(text: str, name: str) -> float:
    """The sum of a metric over its labels."""
    return sum(float(value) for value in re.findall(rf"^{re.escape(name)}(?:{{[^\n]*}})? (\S+)", text, re.MULTILINE))
