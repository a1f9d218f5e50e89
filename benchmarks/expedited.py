"""A call that somebody waits for, among calls that nobody waits for: its time per token, and what it costs the others."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from statistics import median

from benchmarks.programs import KeptEngine, Reading, call, function, numbers, read, read_all, running, submit
from parrot_server.runtime import Runtime

BATCH_CALLS = 16
BATCH_TOKENS = 200
EXPEDITED_TOKENS = 100
PROMPT_NUMBERS = 64
ALTERNATIONS = 3
BOUND = 1.5

BATCH = function("Numbers: {{x}}\nMore numbers:{{y}}", BATCH_TOKENS)
EXPEDITED = function("A question: {{x}}\nThe answer:{{y}}", EXPEDITED_TOKENS)


@dataclass(frozen=True)
class Beside:
    """An expedited call beside batch calls: the call, the batch's answers, and tokens a second over all of them."""

    expedited: Reading
    batch: list[Reading]
    tokens_s: float


async def alone(runtime: Runtime, seed: int) -> Reading:
    """The expedited call by itself."""
    program = await submit(runtime, [EXPEDITED], call("v", EXPEDITED, x=numbers(PROMPT_NUMBERS, seed)))
    return await read(runtime, program, "v")


async def beside(runtime: Runtime, seed: int) -> Beside:
    """The expedited call, sent when all batch calls decode."""
    began_s = time.perf_counter()
    calls = [call(f"b{n}", BATCH, x=numbers(PROMPT_NUMBERS, 1_000 * seed + n)) for n in range(BATCH_CALLS)]
    program = await submit(runtime, [BATCH], *calls, batch=True)
    readers = asyncio.create_task(read_all(runtime, program, [one.id for one in calls]))
    nodes = runtime.scheduler.graph(program).nodes
    while not all(node.timing.first_token_s for node in nodes):
        await asyncio.sleep(0.01)
        nodes = runtime.scheduler.graph(program).nodes
    expedited = await alone(runtime, seed + 500)
    batch = await readers
    tokens = sum(reading.tokens for reading in [expedited, *batch])
    return Beside(expedited, batch, tokens / (time.perf_counter() - began_s))


async def run() -> tuple[list[Reading], list[Beside], list[Beside]]:
    """Alternations of: alone, beside a batch that is bounded, beside one that is not."""
    engine = KeptEngine(kv_tokens=65_536)
    by_itself, bounded, unbounded = [], [], []
    for seed in range(1, ALTERNATIONS + 1):
        async with running(engine) as runtime:
            by_itself.append(await alone(runtime, seed))
            bounded.append(await beside(runtime, seed))
        async with running(engine, policy="fcfs") as runtime:
            unbounded.append(await beside(runtime, seed + 100))
    await engine.end()
    return by_itself, bounded, unbounded


def main() -> None:
    """Print the ratios with the raw figures."""
    by_itself, bounded, unbounded = asyncio.run(run())
    alone_s = median(one.tpot_s for one in by_itself)
    print(
        f"an expedited call of {EXPEDITED_TOKENS} tokens arrives while {BATCH_CALLS} batch calls of {BATCH_TOKENS} decode"
    )
    print(
        f"  alone                     TPOT {1e3 * alone_s:5.1f} ms  TTFT {median(r.ttft_s for r in by_itself):5.2f} s"
    )
    for name, runs in (("batch bounded", bounded), ("batch not bounded", unbounded)):
        tpot_s = median(one.expedited.tpot_s for one in runs)
        ttft_s = median(one.expedited.ttft_s for one in runs)
        rate = median(one.tokens_s for one in runs)
        ended = all(r.tokens == BATCH_TOKENS for one in runs for r in one.batch)
        print(
            f"  {name:25} TPOT {1e3 * tpot_s:5.1f} ms  TTFT {ttft_s:5.2f} s  {tpot_s / alone_s:5.2f} times alone",
            end="",
        )
        print(f"  all {BATCH_CALLS} ended: {ended}  {rate:6.1f} tokens/s in all")
    ratio = median(one.expedited.tpot_s for one in bounded) / alone_s
    loss = 1 - median(one.tokens_s for one in bounded) / median(one.tokens_s for one in unbounded)
    print(f"  TPOT at most {BOUND} times alone: {ratio <= BOUND}; throughput lost by the bound: {loss:.1%}")


if __name__ == "__main__":
    main()
