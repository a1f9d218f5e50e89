"""The embedded engine against itself: what our step loop costs, and what sharing a prefix gives.

Every figure is measured beside the one it is compared with, in the same process and run, since machines differ and are busy.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from parrot_server.core.model import Piece, PieceKind, Prompt, Sampling
from parrot_server.engines.base import Prefill, Request
from parrot_server.engines.embedded import EmbeddedEngine
from parrot_server.engines.embedded.loading import Loaded, load_engine
from parrot_server.engines.embedded.messages import Reports, from_child
from parrot_server.engines.embedded.model_files import DEFAULT_MODEL, prepare
from parrot_server.engines.embedded.paged_model import PagedModel, row_of
from parrot_server.engines.embedded.sequence import Generation
from parrot_server.engines.embedded.settings import BLOCK_TOKENS, Settings
from parrot_server.engines.tokens import PromptTokenizer, PromptTokens

ALTERNATIONS = 7
STEPS = 16
PROMPT_TOKENS = 128
SHARED_TOKENS = 1_500
OWN_TOKENS = 50
CALLS = 16


@dataclass(frozen=True)
class DecodeRate:
    """Decoding at one batch size, in tokens a second, and the share of the bare rate that our loop reaches."""

    batch: int
    bare: float
    loop: float
    ratio: float


@dataclass(frozen=True)
class Sharing:
    """Calls with a common beginning: prompt tokens computed, and seconds to the last call's first token."""

    computed_tokens: int
    last_first_token_s: float


def random_prompt(tokens: int, seed: int) -> list[int]:
    """Plain token ids."""
    return np.random.default_rng(seed).integers(100, 40_000, tokens).tolist()


class LoopBench:
    """A step loop in this process, on the real model."""

    def __init__(self, kv_tokens: int = 65_536) -> None:
        folder = prepare(DEFAULT_MODEL)
        settings = Settings(folder=str(folder), name=DEFAULT_MODEL, kv_tokens=kv_tokens)
        self.loaded: Loaded = load_engine(settings, "bench", Path(folder))
        self.model: PagedModel = self.loaded.loop._model
        self.token_bytes = PromptTokenizer.from_folder(folder).token_bytes
        self._calls = 0

    def call(self, ids: list[int], max_tokens: int, salt: str = "") -> Generation:
        """Send a call."""
        self._calls += 1
        prompt = Prompt((Piece(PieceKind.VALUE, ""),), (f"p{self._calls}",), chat=False)
        sampling = Sampling(max_tokens=max_tokens, ignore_eos=True)
        request = Request(f"r{self._calls}", "", prompt, sampling, salt)
        call = Generation(request, PromptTokens(ids, (len(ids),)), self.token_bytes, frozenset(), None)
        self.loaded.loop.add(call)
        return call

    def step(self) -> bytes:
        """A step as the engine process does it, up to the bytes for the pipe."""
        self.loaded.loop.step()
        return from_child(Reports(self.loaded.loop.drain_reports()))

    def abort(self, calls: list[Generation]) -> None:
        """Let calls go."""
        for call in calls:
            self.loaded.loop.abort(call.rid)
        self.loaded.loop.drain_reports()


def decode_rate(bench: LoopBench, batch: int) -> DecodeRate:
    """Our loop against `infer()` and an argmax with the inputs set beforehand: same model, process and threads.

    The two take turns at every step, so that whatever else the machine does hits both alike.
    """
    calls = [bench.call(random_prompt(PROMPT_TOKENS, seed), 4 * ALTERNATIONS * STEPS) for seed in range(batch)]
    while not all(call.output_tokens for call in calls):
        bench.step()
    bare, loop = [], []
    for _ in range(ALTERNATIONS):
        bare_s = loop_s = 0.0
        for _ in range(STEPS):
            bare_s += _bare_step_s(bench.model, calls)
            began_s = time.perf_counter()
            bench.step()
            loop_s += time.perf_counter() - began_s
        bare.append(bare_s / STEPS)
        loop.append(loop_s / STEPS)
    bench.abort(calls)
    ratio = median(b / o for b, o in zip(bare, loop, strict=True))
    return DecodeRate(batch, batch / median(bare), batch / median(loop), ratio)


def _bare_step_s(model: PagedModel, calls: list[Generation]) -> float:
    """The time to compute the last computed token of each call once more, which changes nothing."""
    rows = []
    for call in calls:
        assert call.seat is not None
        past = call.computed - 1
        rows.append(row_of(call.ids[past : past + 1], past, call.seat.table, sampled=True))
    request = model.set_inputs(rows)
    began_s = time.perf_counter()
    request.infer(share_outputs=True)
    request.get_output_tensor(0).data[:, 0, :].argmax(axis=1)
    return time.perf_counter() - began_s


def sharing(bench: LoopBench, shared: bool, seed: int) -> Sharing:
    """Calls that arrive together with a cold common beginning; a salt for each of them keeps it from being shared."""
    head = random_prompt(SHARED_TOKENS, seed)
    began_s = time.perf_counter()
    calls = [
        bench.call(head + random_prompt(OWN_TOKENS, seed + i + 1), 2, salt=f"{seed}" if shared else f"{seed}-{i}")
        for i in range(CALLS)
    ]
    while not all(call.output_tokens for call in calls):
        bench.step()
    last_s = time.perf_counter() - began_s
    computed = sum(call.prompt_tokens - call.cached_tokens for call in calls)
    bench.abort(calls)
    return Sharing(computed, last_s)


async def through_the_process(batch: int, tokens: int = 200) -> float:
    """Tokens a second through the engine process and its pipe, from the first token of the last call on."""
    engine = EmbeddedEngine(kv_tokens=65_536)
    await engine.start()
    begun_s = await asyncio.gather(
        *(_answer(engine, f"Story number {i}. Once upon a time", tokens) for i in range(batch))
    )
    elapsed_s = time.perf_counter() - max(begun_s)
    await engine.close()
    return batch * tokens / elapsed_s


async def together(calls: int = CALLS, numbers: int = 134, tokens: int = 200) -> tuple[float, float]:
    """Seconds for calls of 500 prompt tokens, one after another and all at once, on one engine process.

    A number of up to three digits with its blank is 3.7 tokens on the mean: the vocabulary has single digits.
    """
    engine = EmbeddedEngine(kv_tokens=65_536)
    await engine.start()
    texts = [" ".join(f"{(i * 37 + j) % 1_000}" for j in range(numbers)) for i in range(2 * calls)]
    began_s = time.perf_counter()
    for text in texts[:calls]:
        await _answer(engine, text, tokens)
    between_s = time.perf_counter()
    await asyncio.gather(*(_answer(engine, text, tokens) for text in texts[calls:]))
    ended_s = time.perf_counter()
    await engine.close()
    return between_s - began_s, ended_s - between_s


async def _answer(engine: EmbeddedEngine, text: str, tokens: int) -> float:
    """Run a call; returns when its prompt was computed."""
    prompt = Prompt((Piece(PieceKind.VALUE, text),), (text,), chat=False)
    sampling = Sampling(max_tokens=tokens, ignore_eos=True)
    begun_s = 0.0
    async for event in engine.generate(Request(secrets.token_hex(8), "", prompt, sampling)):
        if isinstance(event, Prefill):
            begun_s = time.perf_counter()
    return begun_s


def main() -> None:
    """Print every ratio with the raw figures."""
    bench = LoopBench()
    print(f"embedded engine, {DEFAULT_MODEL}, measured costs: {bench.loaded.spec.cost}")
    print("decode, tokens/s        bare      loop  loop/bare  through the process")
    for batch in (1, 4, 8, 16):
        rate = decode_rate(bench, batch)
        process = asyncio.run(through_the_process(batch))
        print(f"  batch {batch:2}          {rate.bare:8.1f}  {rate.loop:8.1f}  {rate.ratio:9.3f}  {process:8.1f}")
    unshared, once = sharing(bench, shared=False, seed=1_000), sharing(bench, shared=True, seed=2_000)
    print(f"{CALLS} calls of {SHARED_TOKENS} shared and {OWN_TOKENS} own prompt tokens, all cold")
    for name, figure in (("unshared", unshared), ("shared", once)):
        print(
            f"  {name:8}  computed {figure.computed_tokens:6} tokens  last first token {figure.last_first_token_s:6.2f} s"
        )
    bound = SHARED_TOKENS + CALLS * (OWN_TOKENS + BLOCK_TOKENS)
    print(f"  computed at most {bound}: {once.computed_tokens <= bound}")
    print(f"  last first token sooner by {unshared.last_first_token_s / once.last_first_token_s:.1f}x")
    one_by_one_s, at_once_s = asyncio.run(together())
    print(f"{CALLS} calls of about 500 prompt and 200 output tokens through the process")
    print(f"  one after another {one_by_one_s:6.2f} s  all at once {at_once_s:6.2f} s", end="")
    print(f"  sooner by {one_by_one_s / at_once_s:.1f}x")


if __name__ == "__main__":
    main()
