"""What a child waits for when its parent has ended: with the beginning of its prompt computed meanwhile, and without."""

from __future__ import annotations

import asyncio
from statistics import median

from benchmarks.programs import KeptEngine, call, function, numbers, read_all, running, submit
from parrot_server.core.model import Ref

CONSTANT_NUMBERS = 250  # of four tokens
PARENT_TOKENS = 100
ALTERNATIONS = 5
BOUND = 3.0
NEVER = {"warm_tokens": 10**9}  # no beginning is long enough to be computed by itself


async def ttft_s(engine: KeptEngine, seed: int, early: bool) -> tuple[float, int]:
    """Seconds from the parent's last token to the child's first, and how much of the child's prompt was there by then."""
    parent = function("Some numbers: {{x}}\nMore of them:{{y}}", PARENT_TOKENS)
    child = function(f"The rules:{numbers(CONSTANT_NUMBERS, seed)}\nNumbers: {{{{x}}}}\nTheir sum:{{{{y}}}}", 8)
    async with running(engine, **({} if early else NEVER)) as runtime:
        calls = (call("p", parent, x=numbers(8, seed + 1)), call("c", child, x=Ref("p")))
        program = await submit(runtime, [parent, child], *calls)
        above, below = await read_all(runtime, program, ["p", "c"])
    return below.first_s - above.last_s, below.cached_tokens


async def run() -> dict[bool, list[tuple[float, int]]]:
    """Alternations of with (True) and without, each with other rules."""
    engine = KeptEngine(kv_tokens=65_536)
    await ttft_s(engine, 1, early=True)
    found: dict[bool, list[tuple[float, int]]] = {True: [], False: []}
    for n in range(1, ALTERNATIONS + 1):
        for early in (True, False):
            found[early].append(await ttft_s(engine, 1_000 * n + 10 * early, early))
    await engine.end()
    return found


def main() -> None:
    """Print the ratio with the raw figures."""
    found = asyncio.run(run())
    print(
        f"a child with {4 * CONSTANT_NUMBERS} constant tokens, then its parent's {PARENT_TOKENS}: time to first token"
    )
    medians = {}
    for early, name in ((True, "prefilled early"), (False, "not")):
        medians[early] = median(seconds for seconds, _ in found[early])
        raw = " ".join(f"{seconds:.3f}" for seconds, _ in found[early])
        cached = median(tokens for _, tokens in found[early])
        print(f"  {name:15}  {medians[early]:6.3f} s  ({raw})  {cached:5.0f} tokens were there")
    ratio = medians[False] / medians[True]
    print(f"  sooner by {ratio:.1f}x; at least {BOUND:g}: {ratio >= BOUND}")


if __name__ == "__main__":
    main()
