"""SGLang by its own API: exact prompts, priorities, pins by reference, aborts that are confirmed."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path

from parrot_server.core.model import CostModel, EngineSpec, Prompt, Sampling, Tier
from parrot_server.engines.base import GenerateEvent, Load, Request
from parrot_server.engines.exact import SAMPLE, check_fits, check_same_tokenizer, encode
from parrot_server.engines.finding import Finding, isolation
from parrot_server.engines.http import Body, EngineHTTP, Patience, json_of
from parrot_server.engines.http_errors import broken
from parrot_server.engines.openai import OpenAIEngine
from parrot_server.engines.openai_flavour import SGLANG
from parrot_server.engines.sglang_pins import SGLangPins, salted
from parrot_server.engines.sglang_server import SGLangServer, findings, load_of, probe
from parrot_server.engines.sglang_stream import SGLangAnswer
from parrot_server.engines.tokens import PromptTokenizer
from parrot_server.errors import EngineError, Fault

CONTEXT_TOKENS = 8_192
TOP_PRIORITY = 1  # of a warm call; a gap of more than 10 would make the server preempt what runs
ABORT_AGAIN_S = 0.5
ABORT_TRIES = 20


class SGLangEngine:
    """One SGLang server. What it was started with decides what it can do; `doctor` says which flag would enable more.

    Args:
        id: its name among the engines.
        url: base URL.
        api_key: sent as a bearer token.
        tokenizer: of the model. None: taken from the server's own model folder where that is on this machine; else prompts
            go out as messages, and nothing can be pinned.
        context_tokens: the model's context, where the server does not say.
        cost: what its work costs.
        patience: how long to wait for it.

    Raises:
        SetupError: the URL is none.
    """

    def __init__(
        self,
        id: str,
        url: str,
        api_key: str | None = None,
        tokenizer: PromptTokenizer | None = None,
        *,
        context_tokens: int | None = None,
        cost: CostModel | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.id = id
        self._url = url
        self._api_key = api_key
        self._patience = patience or Patience()
        self._http = EngineHTTP(id, url, api_key, self._patience)
        self._tokenizer = tokenizer
        self._context_tokens = context_tokens or CONTEXT_TOKENS
        self._cost = cost or CostModel()
        self._server: SGLangServer | None = None
        self._pins: SGLangPins | None = None
        self._by_messages: OpenAIEngine | None = None

    async def start(self) -> EngineSpec:
        """Ask the server what it is. Raises EngineError; SetupError when the tokenizer is another model's."""
        server = self._server = await probe(self._http, self._context_tokens)
        if self._tokenizer is None and server.tokenizer_path and (folder := Path(server.tokenizer_path)).is_dir():
            self._tokenizer = PromptTokenizer.from_folder(folder)
        if self._pins:
            self._pins.forget()
        spec = EngineSpec(
            self.id,
            "sglang",
            models=(server.model,),
            context_tokens=server.context_tokens,
            kv_tokens=server.kv_tokens,
            max_running=server.max_running,
            can_pin=server.prefix_cache,
            shares_prefixes=server.prefix_cache,
            schemas=server.grammars and self._tokenizer is not None,
            cost=self._cost,
        )
        if self._tokenizer is None:
            return await self._start_by_messages(spec, server)
        await self._check_tokenizer(self._tokenizer)
        priority = server.priority_sign * TOP_PRIORITY if server.priority_sign else None
        name = f"parrot-{secrets.token_hex(4)}"
        self._pins = SGLangPins(self._http, name, server.session_pins, self._patience.first_token_s, priority)
        return replace(spec, chat=self._tokenizer.chat is not None)

    async def generate(self, request: Request) -> AsyncGenerator[GenerateEvent, None]:
        """Stream one answer. When it is closed early, it returns after the server has let go."""
        server, tokenizer = self._up(), self._tokenizer
        if tokenizer is None:
            async with aclosing(self._generate_by_messages(request)) as events:
                async for event in events:
                    yield event
            return
        body = await self._body(server, tokenizer, request)
        answer = SGLangAnswer(self.id, request.sampling, server.grown_text)
        lines: asyncio.Queue[str | None] = asyncio.Queue()
        # A task of its own reads, so that it can go on reading when the caller is cancelled: the end of the stream is the
        # server's word that it has let go.
        reader = asyncio.create_task(self._read(body, lines))
        reader.add_done_callback(lambda _: lines.put_nowait(None))
        try:
            while (line := await lines.get()) is not None:
                for event in answer.take(line):
                    yield event
            await reader
            if answer.done is None:
                raise broken(self.id, "it ended without its last line")
        finally:
            await self._let_go(request.rid, reader, ended=answer.done is not None)

    async def check(self, sampling: Sampling) -> None:
        """The server says so when it is asked to."""

    async def keep(self, prefix: str, prompt: Prompt | None, model: str, salt: str, tier: Tier, hold_s: float) -> int:
        """Warm and pin a prefix, or let it go. Raises EngineError."""
        self._up()
        if self._by_messages is not None:
            return await self._by_messages.keep(prefix, prompt, model, salt, tier, hold_s)
        if self._pins is None or self._tokenizer is None:
            return 0
        if tier is not Tier.DEVICE or prompt is None:
            await self._pins.release(prefix, salt)
            return 0
        tokens = await encode(self._tokenizer, prompt)
        return await self._pins.hold(prefix, tokens.ids[: tokens.covered[-1]], salt, hold_s)

    async def pause(self, rid: str) -> None:
        """It cannot."""

    async def resume(self, rid: str, grant_tokens: int | None) -> None:
        """It cannot."""

    async def load(self) -> Load:
        """What the server says of itself. Raises EngineError when it is gone."""
        server = self._up()
        if not server.load_path:
            await self._http.get("/v1/models")
            return Load(0, 0, 0)
        return load_of(await self._http.get(server.load_path))

    async def close(self) -> None:
        """Let all prefixes go and close all connections. The server stays."""
        if self._pins:
            await self._pins.release_all()
        if self._by_messages:
            await self._by_messages.close()
        await self._http.close()

    async def doctor(self) -> tuple[Finding, ...]:
        """What it can and cannot do, and which flag would enable it. Sends four tiny prompts. Raises EngineError."""
        server = self._up()
        return (*findings(server, self._tokenizer is not None), await self._examine_isolation(server))

    def _up(self) -> SGLangServer:
        if self._server is None:
            raise EngineError(Fault.ENGINE, "engine_gone", f"engine {self.id} was not started")
        return self._server

    async def _body(self, server: SGLangServer, tokenizer: PromptTokenizer, request: Request) -> Body:
        if request.model not in ("", server.model):
            message = f"engine {self.id} does not serve the model {request.model!r}"
            raise EngineError(Fault.CALL, "unknown_model", message)
        tokens = await encode(tokenizer, request.prompt)
        check_fits(self.id, len(tokens.ids), request.sampling.max_tokens, server.context_tokens)
        body: Body = {
            "rid": request.rid,
            "input_ids": tokens.ids,
            "sampling_params": sampling_params(request.sampling, server.grammars),
            "stream": True,
            **salted(request.salt),
        }
        if server.priority_sign:
            body["priority"] = server.priority_sign * request.priority
        return body

    async def _read(self, body: Body, lines: asyncio.Queue[str | None]) -> None:
        async with aclosing(self._http.events("/generate", body)) as events:
            async for data in events:
                lines.put_nowait(data)

    async def _let_go(self, rid: str, reader: asyncio.Task[None], ended: bool) -> None:
        """Abort a call until its stream has ended, unless it ended well or was refused."""
        try:
            for _ in range(0 if ended or _was_refused(reader) else ABORT_TRIES):
                with suppress(EngineError):
                    await self._http.post("/abort_request", {"rid": rid})
                await asyncio.wait([reader], timeout=ABORT_AGAIN_S)
                if reader.done():
                    break
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _check_tokenizer(self, tokenizer: PromptTokenizer) -> None:
        body = {"prompt": SAMPLE, "add_special_tokens": False}
        try:
            said = json_of(self.id, await self._http.post("/v1/tokenize", body))
        except EngineError as error:
            if error.fault is not Fault.CALL:
                raise
            return  # an older server has no such route, so this cannot be checked
        check_same_tokenizer(self.id, tokenizer, said.get("tokens") or [])

    async def _start_by_messages(self, spec: EngineSpec, server: SGLangServer) -> EngineSpec:
        """Without a tokenizer: messages to the server's OpenAI routes."""
        if self._by_messages is None:
            self._by_messages = OpenAIEngine(
                self.id,
                self._url,
                api_key=self._api_key,
                context_tokens=server.context_tokens,
                flavour=replace(SGLANG, priority_sign=server.priority_sign),
                patience=self._patience,
            )
        there = await self._by_messages.start()
        return replace(spec, continues=there.continues, chat=there.chat)

    async def _generate_by_messages(self, request: Request) -> AsyncGenerator[GenerateEvent, None]:
        assert self._by_messages is not None
        ended = False
        try:
            async with aclosing(self._by_messages.generate(request)) as events:
                async for event in events:
                    yield event
            ended = True
        finally:
            if not ended:
                with suppress(EngineError):
                    await self._http.post("/abort_request", {"rid": request.rid})

    async def _examine_isolation(self, server: SGLangServer) -> Finding:
        """Whether salts separate tenants: the same prompt is found again under its own salt and under no other."""
        if not server.prefix_cache:
            return Finding("isolation", True, "nothing is reused, so nothing can be told across tenants")
        ids = [100 + secrets.randbelow(400) for _ in range(64)]
        mine, others = (f"examination-{secrets.token_hex(8)}" for _ in range(2))
        cached = [await self._cached_tokens(ids, salt) for salt in (mine, mine, others)]
        return isolation(cached)

    async def _cached_tokens(self, ids: list[int], salt: str) -> int:
        body: Body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 1, "temperature": 0}, **salted(salt)}
        answer = json_of(self.id, await self._http.post("/generate", body))
        return int((answer.get("meta_info") or {}).get("cached_tokens") or 0)


def _was_refused(reader: asyncio.Task[None]) -> bool:
    """Whether the server did not take the call at all."""
    error = reader.exception() if reader.done() and not reader.cancelled() else None
    return isinstance(error, EngineError) and error.fault in (Fault.CALL, Fault.BUSY)


def sampling_params(sampling: Sampling, grammars: bool) -> Body:
    """How an output is generated, in SGLang's words. Stop strings stay in the text, so that we see which one it was."""
    params: Body = {
        "max_new_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    if sampling.stop:
        params |= {"stop": list(sampling.stop), "no_stop_trim": True}
    if sampling.ignore_eos:
        params["ignore_eos"] = True
    if sampling.seed is not None:
        params["sampling_seed"] = sampling.seed
    if sampling.choices and grammars:
        params["regex"] = "(" + "|".join(map(re.escape, sampling.choices)) + ")"
    elif sampling.schema is not None and grammars:
        params["json_schema"] = sampling.schema
    return params
