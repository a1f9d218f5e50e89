"""Programs for benchmarks: sent to a runtime in this process, on the real engine, and timed as their readers see them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from parrot_sdk.template import function_id
from parrot_server.core.events import Submitted
from parrot_server.core.model import Binding, CallSpec, Criterion, FunctionSpec, Op, Sampling, Value
from parrot_server.core.settings import SchedulerSettings
from parrot_server.engines.embedded import EmbeddedEngine
from parrot_server.runtime import Runtime, RuntimeSettings
from parrot_server.streams import Delta

WAIT_S = 600.0
THROUGHPUT = Criterion("throughput")


class KeptEngine(EmbeddedEngine):
    """An engine that outlives the runtimes that use it one after another."""

    async def close(self) -> None:
        """Not yet."""

    async def end(self) -> None:
        """Now."""
        await super().close()


@dataclass(frozen=True)
class Reading:
    """One answer as its reader saw it: seconds on one clock, and how many tokens it has."""

    sent_s: float
    first_s: float
    last_s: float
    tokens: int
    prompt_tokens: int
    cached_tokens: int

    @property
    def ttft_s(self) -> float:
        """Seconds to the first token."""
        return self.first_s - self.sent_s

    @property
    def tpot_s(self) -> float:
        """Seconds a token after the first."""
        return (self.last_s - self.first_s) / (self.tokens - 1)


def numbers(count: int, seed: int) -> str:
    """So many numbers of three digits, each behind a blank: four tokens of the packaged model."""
    dice = random.Random(seed)
    return "".join(f" {dice.randint(100, 999)}" for _ in range(count))


def function(text: str, max_tokens: int) -> FunctionSpec:
    """A function of plain text whose answers have just so many tokens."""
    sampling = Sampling(max_tokens=max_tokens, ignore_eos=True)
    digest = function_id(text, {"y": {"max_tokens": max_tokens}}, {}, "text")
    return FunctionSpec(digest, "f", text, (("y", sampling),), format="text")


def call(name: str, spec: FunctionSpec, **inputs: Binding | str) -> CallSpec:
    """A call whose output is a variable of its own name. Texts are `numbers`: each of their characters is a token."""
    pairs = tuple((hole, Value(x, len(x)) if isinstance(x, str) else x) for hole, x in inputs.items())
    return CallSpec(name, Op.GENERATE, pairs, (("y", name),), spec.id)


@asynccontextmanager
async def running(engine: EmbeddedEngine, **settings: object) -> AsyncIterator[Runtime]:
    """A runtime whose engine is up; settings are those of the scheduler."""
    scheduler = SchedulerSettings(**settings)  # type: ignore[arg-type]
    async with Runtime([engine], RuntimeSettings(scheduler)) as runtime:
        await runtime.engines_up()
        yield runtime


async def submit(
    runtime: Runtime, functions: Iterable[FunctionSpec], *calls: CallSpec, batch: bool = False, closed: bool = True
) -> str:
    """Open a program; `batch`: nobody waits for what it says."""
    program = runtime.new_program_id()
    criteria = tuple((name, THROUGHPUT) for one in calls for _, name in one.outputs) if batch else ()
    event = Submitted(program, functions=tuple(functions), calls=calls, criteria=criteria, closed=closed)
    await runtime.post(event)
    return program


async def read(runtime: Runtime, program: str, name: str) -> Reading:
    """Read a variable's text from now to its end."""
    sent_s, times = time.perf_counter(), []
    async for item in await runtime.stream(program, name):
        if isinstance(item, Delta):
            times.append(time.perf_counter())
    view = runtime.scheduler.variable(program, name)
    assert isinstance(view.outcome, Value), f"{name}: {view.outcome}"
    assert view.usage is not None
    usage = view.usage
    return Reading(sent_s, times[0], times[-1], usage.output_tokens, usage.prompt_tokens, usage.cached_tokens)


async def read_all(runtime: Runtime, program: str, names: Iterable[str]) -> list[Reading]:
    """Read several variables at once."""
    return list(await asyncio.gather(*(read(runtime, program, name) for name in names)))
