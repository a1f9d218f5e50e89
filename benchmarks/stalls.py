"""A program waits for its client: what keeping, moving out and dropping its KV cost, measured, and which of them the scheduler takes.

Measured on the engine while a batch decodes: how much later the first token comes when what was read has to be brought back or computed
again, and by how much the batch's steps take longer meanwhile, and while it is moved out. The stall itself is not waited for: its cost
is the tokens kept for so long, where somebody waits for their room. All in token-seconds, as the scheduler counts. The decision is
the scheduler's own, seen in what it asks of the engine, with the costs that the engine measured when it started.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from bisect import bisect
from dataclasses import dataclass, replace
from itertools import product
from statistics import median

from benchmarks.programs import KeptEngine, call, function, numbers, running, submit
from parrot_server.core.events import Closed
from parrot_server.core.model import CallState, CostModel, Piece, PieceKind, Prompt, Sampling, Tier
from parrot_server.core.retention import Fate
from parrot_server.engines.base import Request, Text

STALLS_S = (0.2, 2.0, 20.0)
READ_TOKENS = 1_500
KV_TOKENS = 8_192
BATCH_PROMPT_NUMBERS = 64
BATCHES = {"none": 4, "high": 12}  # calls that decode; with "high" as many more wait for room
ALTERNATIONS = 3
WINDOW_S = 0.5
SETTLED_S = 1.0


@dataclass(frozen=True)
class Lost:
    """What a way costs the call that goes on, and the batch beside it, in seconds; and how many tokens that batch has."""

    call_s: float
    batch_s: float
    batch_tokens: int

    @property
    def waste_token_s(self) -> float:
        """Tokens that lie or stand idle, times for how long."""
        return READ_TOKENS * self.call_s + self.batch_tokens * self.batch_s


class Recording(KeptEngine):
    """Notes what it is asked to keep."""

    def __init__(self, host_tokens: int | None) -> None:
        super().__init__(kv_tokens=KV_TOKENS, context_tokens=KV_TOKENS // 2, host_tokens=host_tokens)
        self.keeps: list[tuple[str, Tier]] = []

    async def keep(self, prefix: str, prompt: Prompt | None, model: str, salt: str, tier: Tier, hold_s: float) -> int:
        """As the engine."""
        self.keeps.append((prefix, tier))
        return await super().keep(prefix, prompt, model, salt, tier, hold_s)


def text_prompt(*parts: str) -> Prompt:
    """Plain text in pieces, each of which ends a prefix of its own."""
    pieces = tuple(Piece(PieceKind.VALUE, part, len(part) // 4) for part in parts)
    return Prompt(pieces, tuple("/".join(parts[: n + 1]) for n in range(len(parts))), chat=False)


class Batch:
    """Calls that decode without end, and how many tokens they have made."""

    def __init__(self, engine: KeptEngine, calls: int) -> None:
        self.calls = calls
        self._made = 0
        self._steps_s: list[float] = []  # when one of them got its tokens
        self._engine = engine
        self._tasks = [asyncio.create_task(self._decode(n)) for n in range(calls)]
        self._waiting = calls
        self._all_begun = asyncio.Event()

    async def _decode(self, n: int) -> None:
        sampling = Sampling(max_tokens=1_500, ignore_eos=True)
        prompt = text_prompt(numbers(BATCH_PROMPT_NUMBERS, secrets.randbits(30)))
        first = True
        async for event in self._engine.generate(Request(secrets.token_hex(8), "", prompt, sampling, priority=-1)):
            if isinstance(event, Text):
                self._made += 1
                if n == 0:
                    self._steps_s.append(time.perf_counter())
                self._waiting -= first
                first = False
                if not self._waiting:
                    self._all_begun.set()

    async def ready(self) -> None:
        """Wait until all of them decode."""
        await self._all_begun.wait()

    async def lost_s(self, since_s: float) -> float:
        """By how much the steps since then, and one more, took longer than those of the half second before."""
        await asyncio.sleep(WINDOW_S / 4)
        times = self._steps_s
        begin, before = bisect(times, since_s) - 1, bisect(times, since_s - WINDOW_S)
        usual_s = (times[begin] - times[before]) / (begin - before)
        return times[-1] - times[begin] - (len(times) - 1 - begin) * usual_s

    @property
    def tokens(self) -> int:
        """How many are resident."""
        return 4 * BATCH_PROMPT_NUMBERS * self.calls + self._made

    async def stop(self) -> None:
        """Let all go."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def first_token_s(engine: KeptEngine, prompt: Prompt, max_tokens: int = 1) -> float:
    """Run a call; seconds to its first token."""
    began_s, first_s = time.perf_counter(), 0.0
    sampling = Sampling(max_tokens=max_tokens, ignore_eos=True)
    async for event in engine.generate(Request(secrets.token_hex(8), "", prompt, sampling, priority=1)):
        if isinstance(event, Text) and not first_s:
            first_s = time.perf_counter() - began_s
    return first_s


async def go_on(engine: KeptEngine, batch: Batch, fate: Fate, seed: int) -> Lost:
    """What was read meets a fate, and a call goes on from it; what that takes, of which some is due to the call itself."""
    read, own = numbers(READ_TOKENS // 4, seed), numbers(10, seed + 1)
    prompt = text_prompt(read, own)
    prefix, kept = prompt.prefixes[0], prompt.head(prompt.prefixes[0])
    lost_s = 0.0
    if fate is not Fate.DROP:  # what was dropped is as what never was there
        await engine.keep(prefix, kept, "", "", Tier.DEVICE, 600.0)
    if fate is Fate.OFFLOAD:
        await asyncio.sleep(WINDOW_S)
        began_s = time.perf_counter()
        assert await engine.keep(prefix, kept, "", "", Tier.HOST, 600.0) > READ_TOKENS // 2
        lost_s += await batch.lost_s(began_s)
        free = KV_TOKENS - batch.tokens - 700  # a call that needs the room takes that first which was moved out
        while free > 0:
            await first_token_s(engine, text_prompt(numbers(min(free, 2_000) // 4, seed + free)))
            free -= 2_000
    await asyncio.sleep(WINDOW_S)
    began_s = time.perf_counter()
    call_s = await first_token_s(engine, prompt)
    lost_s += await batch.lost_s(began_s)
    await engine.keep(prefix, None, "", "", Tier.NONE, 0.0)
    return Lost(call_s, lost_s, batch.tokens)


async def measure(engine: KeptEngine, calls: int, seed: int) -> dict[Fate, Lost]:
    """What moving out and dropping cost beyond keeping, beside a batch of so many."""
    found: dict[Fate, list[Lost]] = {fate: [] for fate in Fate}
    for n in range(ALTERNATIONS):
        batch = Batch(engine, calls)
        await batch.ready()
        for fate in Fate:
            found[fate].append(await go_on(engine, batch, fate, seed + 100 * n + 10 * list(Fate).index(fate)))
        await batch.stop()
    kept = found[Fate.KEEP]
    return {
        fate: Lost(
            median(max(a.call_s - k.call_s, 0.0) for a, k in zip(lost, kept, strict=True)),
            median(max(a.batch_s - k.batch_s, 0.0) for a, k in zip(lost, kept, strict=True)),
            round(median(a.batch_tokens for a in lost)),
        )
        for fate, lost in found.items()
    }


async def decide(engine: Recording, pressed: bool, stall_s: float, seed: int) -> Fate:
    """What the scheduler does with what a live program has read, when its last call has ended and nothing is to come for so long."""
    others = function("Numbers: {{x}}\nMore:{{y}}", 200)
    reads = function("Read this: {{x}}\nSaid:{{y}}", 4)
    async with running(engine) as runtime:
        count = 2 * BATCHES["high"] if pressed else BATCHES["none"]
        calls = [call(f"b{n}", others, x=numbers(BATCH_PROMPT_NUMBERS, seed + n)) for n in range(count)]
        await submit(runtime, [others], *calls, batch=True)
        turn = replace(call("turn", reads, x=numbers(READ_TOKENS // 4, seed)), expect_return_s=stall_s)
        engine.keeps.clear()
        program = await submit(runtime, [reads], turn, closed=False)
        (node,) = runtime.scheduler.graph(program).nodes
        while node.state is not CallState.DONE:
            await asyncio.sleep(0.005)
            (node,) = runtime.scheduler.graph(program).nodes
        await asyncio.sleep(min(0.8 * stall_s, SETTLED_S))  # the engine is told between two steps
        tiers = [tier for _, tier in engine.keeps]
        await runtime.post(Closed(program))
        await asyncio.sleep(SETTLED_S)  # the engine outlives the runtime: nothing is to be pinned there for the next
    return {Tier.HOST: Fate.OFFLOAD, Tier.DEVICE: Fate.KEEP}.get(tiers[-1] if tiers else Tier.NONE, Fate.DROP)


async def run() -> tuple[CostModel, dict[str, dict[Fate, Lost]], dict[tuple[float, str, str], Fate]]:
    """The engine's own costs, what each way costs at each pressure, and the decision in each cell."""
    ample, without = Recording(None), Recording(0)
    cost = (await ample.start()).cost
    costs = {pressure: await measure(ample, calls, seed=7_000 * calls) for pressure, calls in BATCHES.items()}
    decisions = {}
    for host, engine in (("none", without), ("ample", ample)):
        for n, (stall_s, pressure) in enumerate(product(STALLS_S, BATCHES)):
            seed = 100_000 * (n + 1) + (host == "ample")
            decisions[stall_s, pressure, host] = await decide(engine, pressure == "high", stall_s, seed)
        await engine.end()
    return cost, costs, decisions


def main() -> None:
    """Print what was measured, and a line for each cell."""
    cost, costs, decisions = asyncio.run(run())
    print(f"stalls of a live program that has read {READ_TOKENS} tokens; the engine's costs: {cost}")
    for pressure, ways in costs.items():
        print(
            f"  beside {BATCHES[pressure]} decoders ({ways[Fate.DROP].batch_tokens} tokens), beyond what keeping takes:"
        )
        for fate in (Fate.OFFLOAD, Fate.DROP):
            lost = ways[fate]
            print(f"    {fate:8} the call waits {lost.call_s:7.4f} s, the batch loses {lost.batch_s:7.4f} s")
    print("  stall  pressure  host    keep  offload     drop  token-seconds   taken    cheapest as measured")
    right = 0
    for (stall_s, pressure, host), taken in decisions.items():
        ways = costs[pressure]
        wastes = {fate: lost.waste_token_s for fate, lost in ways.items()}
        wastes[Fate.KEEP] = READ_TOKENS * stall_s if pressure == "high" else 0.0
        if host == "none":
            del wastes[Fate.OFFLOAD]
        best = min(wastes, key=lambda fate: wastes[fate])
        right += best is taken
        shown = "".join(
            f"{wastes[f]:9.0f}" if f in wastes else "        -" for f in (Fate.KEEP, Fate.OFFLOAD, Fate.DROP)
        )
        print(f"  {stall_s:5g}  {pressure:8}  {host:5}{shown}                  {taken:8} {best is taken}")
    print(
        f"  the cheapest was taken in {right} of {len(decisions)} cells; taken at all: {', '.join(sorted(set(decisions.values())))}"
    )


if __name__ == "__main__":
    main()
