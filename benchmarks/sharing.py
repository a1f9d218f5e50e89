"""What calls gain that begin alike, and what calls gain that run together."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from benchmarks.loop import LoopBench, random_prompt
from benchmarks.programs import KeptEngine, numbers
from benchmarks.servers import answered
from parrot_server.engines.embedded.settings import BLOCK_TOKENS

SHARED_TOKENS = 1_500
OWN_TOKENS = 50
CALLS = 16
BOUND = 8.0


@dataclass(frozen=True)
class Sharing:
    """Calls with a common beginning: prompt tokens computed, and seconds to the last call's first token."""

    computed_tokens: int
    last_first_token_s: float


def sharing(bench: LoopBench, shared: bool, seed: int) -> Sharing:
    """Calls that arrive together with a cold common beginning; a salt for each of them keeps it from being shared."""
    head = random_prompt(SHARED_TOKENS, seed)
    began_s = time.perf_counter()
    owns = [random_prompt(OWN_TOKENS, seed + i + 1) for i in range(CALLS)]
    salts = [f"{seed}" if shared else f"{seed}-{i}" for i in range(CALLS)]
    calls = [bench.call(head, own, max_tokens=2, salt=salt) for own, salt in zip(owns, salts, strict=True)]
    while not all(call.output_tokens for call in calls):
        bench.step()
    last_s = time.perf_counter() - began_s
    computed = sum(call.prompt_tokens - call.cached_tokens for call in calls)
    bench.abort(calls)
    return Sharing(computed, last_s)


async def together(calls: int = CALLS, prompt_numbers: int = 125, tokens: int = 200) -> tuple[float, float]:
    """Seconds for calls of 500 prompt tokens, one after another and all at once, on one engine process."""
    engine = KeptEngine(kv_tokens=65_536)
    await engine.start()
    texts = [numbers(prompt_numbers, seed) for seed in range(2 * calls)]
    began_s = time.perf_counter()
    for text in texts[:calls]:
        await answered(engine, text, tokens)
    between_s = time.perf_counter()
    await asyncio.gather(*(answered(engine, text, tokens) for text in texts[calls:]))
    ended_s = time.perf_counter()
    await engine.end()
    return between_s - began_s, ended_s - between_s


def main() -> None:
    """Print the ratios with the raw figures."""
    bench = LoopBench()
    unshared, once = sharing(bench, shared=False, seed=1_000), sharing(bench, shared=True, seed=2_000)
    print(f"{CALLS} calls of {SHARED_TOKENS} shared and {OWN_TOKENS} own prompt tokens, all cold")
    for name, figure in (("unshared", unshared), ("shared", once)):
        print(
            f"  {name:8}  computed {figure.computed_tokens:6} tokens  last first token {figure.last_first_token_s:6.2f} s"
        )
    bound = SHARED_TOKENS + CALLS * (OWN_TOKENS + BLOCK_TOKENS)
    ratio = unshared.last_first_token_s / once.last_first_token_s
    print(f"  computed at most {bound}: {once.computed_tokens <= bound}")
    print(f"  last first token sooner by {ratio:.1f}x; at least {BOUND:g}: {ratio >= BOUND}")
    one_by_one_s, at_once_s = asyncio.run(together())
    print(f"{CALLS} calls of 500 prompt and 200 output tokens through the process")
    print(f"  one after another {one_by_one_s:6.2f} s  all at once {at_once_s:6.2f} s", end="")
    print(f"  sooner by {one_by_one_s / at_once_s:.1f}x")


if __name__ == "__main__":
    main()
