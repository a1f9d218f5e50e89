"""The scripted engine: everything an engine does, without a model. It is for tests, ours and users'.

All its waiting is `asyncio.sleep`, timeouts and events, so a loop with a virtual clock drives it as well as a real one.
It keeps what it was asked: `requests`, `starts`, `aborts`, `counts`, `keeps`.
"""

from __future__ import annotations

import asyncio
import codecs
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import TypedDict, Unpack

from parrot_server.core.model import CostModel, EngineSpec, Prompt, Sampling, Tier, Usage
from parrot_server.engines.base import Done, GenerateEvent, Load, Prefill, Request, Stalled, Taken, Text
from parrot_server.engines.fake_batch import Batch, BatchCall
from parrot_server.engines.fake_kv import PrefixCache, prompt_tokens
from parrot_server.engines.fake_script import Answer, Script, default_answer, prompt_text
from parrot_server.engines.stops import StopFilter
from parrot_server.errors import EngineError, Fault


class Abilities(TypedDict, total=False):
    """Fields of `EngineSpec` that a scripted engine may be given."""

    models: tuple[str, ...]
    context_tokens: int
    kv_tokens: int
    max_running: int
    can_pause: bool
    can_pin: bool
    can_offload: bool
    host_tokens: int
    shares_prefixes: bool
    continues: bool
    chat: bool
    schemas: bool
    cost: CostModel


FULL = EngineSpec(
    "fake",
    "fake",
    models=("fake",),
    context_tokens=32_768,
    kv_tokens=262_144,
    max_running=64,
    can_pause=True,
    can_pin=True,
    can_offload=True,
    host_tokens=262_144,
    schemas=True,
)


class FakeEngine:
    """A scripted engine.

    Args:
        id: its name among the engines.
        script: a function of the request, or a list from which each call that starts takes the first answer; None, or
            an empty list: answers are made from the prompt. May be replaced at any time.
        token_s: seconds for each output token, besides what an answer says.
        prefill_token_s: seconds for each prompt token that is not cached.
        abort_s: seconds until the engine has let go of an aborted call.
        salted: whether salts separate tenants; False is a fault that real engines had.
        abilities: any field of `EngineSpec`; what is not given is what an engine that can do everything has.
    """

    def __init__(
        self,
        id: str = "fake",
        script: Script | None = None,
        *,
        token_s: float = 0.0,
        prefill_token_s: float = 0.0,
        abort_s: float = 0.0,
        salted: bool = True,
        **abilities: Unpack[Abilities],
    ) -> None:
        self.id = id
        self.spec = replace(FULL, id=id, **abilities)
        self.script = script
        self.requests: list[Request] = []
        self.starts: list[str] = []
        self.aborts: list[str] = []
        self.keeps: list[tuple[str, Tier]] = []
        self.counts: Counter[str] = Counter()
        self.down = False
        self.crashed = False
        self._token_s = token_s
        self._prefill_token_s = prefill_token_s
        self._abort_s = abort_s
        self._cache = PrefixCache(self.spec.kv_tokens, salted)
        self._batch = Batch(self.spec.max_running, self.spec.kv_tokens)

    @property
    def prompts(self) -> list[str]:
        """The prompts as text, in the order in which they came."""
        return [prompt_text(request.prompt) for request in self.requests]

    @property
    def pinned(self) -> set[str]:
        """The prefixes that are pinned now."""
        return self._cache.pinned(asyncio.get_running_loop().time())

    def go_down(self) -> None:
        """Be unreachable: all that runs here fails, and `start` and `load` raise until `come_back`."""
        self.down = True
        self._drop_all("engine_gone", f"engine {self.id} is gone")

    def come_back(self) -> None:
        """Be reachable again, with an empty cache. The server notices by `start`."""
        self.down = self.crashed = False

    def abort(self, rid: str) -> None:
        """Let a call go from outside, as a server's route for that does. Its stream ends in an error."""
        if call := self._batch.find(rid):
            self.aborts.append(rid)
            call.error = EngineError(Fault.ENGINE, "aborted", f"a call was aborted in engine {self.id}")
            call.poked.set()

    async def start(self) -> EngineSpec:
        """Come up. A crashed engine is started anew; one that is down stays so."""
        self.crashed = False
        self._check_up()
        return self.spec

    async def generate(self, request: Request) -> AsyncGenerator[GenerateEvent, None]:
        """Answer as the script says."""
        self.requests.append(request)
        self.counts[request.rid] += 1
        self._check_up()
        call = self._accept(request)
        ended = False
        try:
            await self._batch.turn_of(call)
            self.starts.append(request.rid)
            yield Taken()
            cached_tokens = await self._prefill(request.prompt, request.salt, call)
            yield Prefill(call.prompt_tokens, cached_tokens)
            async with aclosing(self._decode(call, cached_tokens)) as events:
                async for event in events:
                    ended = isinstance(event, Done)
                    yield event
        except EngineError:
            ended = True
            raise
        finally:
            try:
                if not ended:
                    self.aborts.append(request.rid)
                    await asyncio.sleep(self._abort_s)
            finally:
                self._batch.leave(call)

    async def check(self, sampling: Sampling) -> None:
        """Every schema will do."""

    async def keep(self, prefix: str, prompt: Prompt | None, model: str, salt: str, tier: Tier, hold_s: float) -> int:
        """Warm and pin, move out, or let go."""
        self._check_up()
        self.keeps.append((prefix, tier))
        if tier is Tier.NONE or prompt is None:
            self._cache.unpin(prefix, salt)
            return 0
        await self._prefill(prompt, salt)
        if tier is Tier.HOST:
            self._cache.offload(prefix, prompt, salt)
        elif self.spec.can_pin:
            self._cache.pin(prefix, prompt, salt, asyncio.get_running_loop().time() + hold_s)
        return prompt_tokens(prompt)

    async def pause(self, rid: str) -> None:
        """Stop a call before its next token."""
        if call := self._batch.find(rid):
            call.grant_tokens = 0

    async def resume(self, rid: str, grant_tokens: int | None) -> None:
        """Let a paused call queue for a place in the batch, ahead of those that never ran."""
        if call := self._batch.find(rid):
            call.grant_tokens = grant_tokens
            if rid in self._batch.paused:
                self._batch.enter(call)

    async def load(self) -> Load:
        """How busy it is."""
        self._check_up()
        return Load(len(self._batch.running), len(self._batch.waiting), self._cache.used_tokens)

    async def close(self) -> None:
        """Fail what still runs."""
        self._drop_all("engine_gone", f"engine {self.id} was stopped")

    def _check_up(self) -> None:
        if self.down or self.crashed:
            raise EngineError(Fault.ENGINE, "engine_gone", f"engine {self.id} is gone")

    def _accept(self, request: Request) -> BatchCall:
        if request.model and request.model not in self.spec.models:
            raise EngineError(
                Fault.CALL, "unknown_model", f"engine {self.id} does not serve the model {request.model!r}"
            )
        length = prompt_tokens(request.prompt)
        most = length + request.sampling.max_tokens
        if most > self.spec.context_tokens:
            raise EngineError(
                Fault.CALL,
                "context_overflow",
                f"the prompt has {length} tokens and may be answered by {request.sampling.max_tokens}: "
                f"more than the context of {self.spec.context_tokens} of engine {self.id}",
            )
        if self._batch.find(request.rid):
            raise EngineError(Fault.CALL, "duplicate_rid", f"engine {self.id} already runs a call {request.rid!r}")
        cached_tokens = self._cache.cached_tokens(request.prompt, request.salt)
        call = BatchCall(request, length, most - cached_tokens, request.grant_tokens)
        self._batch.enter(call)
        return call

    async def _spend(self, call: BatchCall, seconds: float) -> None:
        end_s = asyncio.get_running_loop().time() + seconds
        await asyncio.sleep(0)
        while seconds and await call.poked_before(end_s):
            pass
        call.check()

    async def _prefill(self, prompt: Prompt, salt: str, call: BatchCall | None = None) -> int:
        cached = self._cache.cached_tokens(prompt, salt) if self.spec.shares_prefixes else 0
        seconds = (prompt_tokens(prompt) - cached) * self._prefill_token_s
        if call:
            await self._spend(call, seconds)
        else:
            await asyncio.sleep(seconds)
        self._cache.insert(prompt, salt, asyncio.get_running_loop().time())
        return cached

    async def _decode(self, call: BatchCall, cached_tokens: int) -> AsyncGenerator[GenerateEvent, None]:
        answer = self._answer(call.request)
        sampling = call.request.sampling
        stops = StopFilter(sampling.stop, sampling.keep_stop)
        characters = codecs.getincrementaldecoder("utf-8")(errors="replace")
        chunks = answer.pieces()
        produced = 0
        for chunk in chunks[: sampling.max_tokens]:
            if call.grant_tokens == 0:
                self._batch.pause(call)
                yield Stalled(produced)
                await self._batch.turn_of(call)
            await self._spend(call, self._token_s + answer.delay_s(produced))
            produced += 1
            call.grant_tokens = None if call.grant_tokens is None else max(0, call.grant_tokens - 1)
            if text := stops.feed(characters.decode(chunk) if isinstance(chunk, bytes) else chunk):
                yield Text(text, produced)
            if stops.fired is not None:
                break
        cut_off = len(chunks) > produced
        if stops.fired is None and not cut_off:
            await self._end(call, answer)
        if text := stops.feed(characters.decode(b"", final=True)) + stops.flush():
            yield Text(text, produced)
        at_limit = stops.fired is None and (cut_off or (sampling.ignore_eos and produced == sampling.max_tokens))
        usage = answer.usage or Usage(call.prompt_tokens, cached_tokens, produced)
        yield Done("length" if at_limit else "stop", usage, stops.fired)

    async def _end(self, call: BatchCall, answer: Answer) -> None:
        """Do what follows the last chunk."""
        if isinstance(answer.then, EngineError):
            raise answer.then
        if answer.then == "crash":
            self.crashed = True
            self._drop_all("engine_crashed", f"engine {self.id} died while it ran this call")
        if answer.then != "done":
            while True:
                await call.poked_before(None)

    def _answer(self, request: Request) -> Answer:
        said: Answer | str | None = None
        if isinstance(self.script, list):
            said = self.script.pop(0) if self.script else None
        elif self.script is not None:
            said = self.script(request)
        if said is None:
            return default_answer(request, self.spec.schemas)
        return Answer(said) if isinstance(said, str) else said

    def _drop_all(self, type: str, message: str) -> None:
        self._cache.clear()
        for call in self._batch.calls():
            call.error = EngineError(Fault.ENGINE, type, message)
            call.poked.set()
