"""One program on one engine in several configurations, one after another, and what each step from the first to the last brings.

    A   an ordinary client, and a server without a prefix cache
    B   the same client, and the engine's own prefix cache
    C   the same program, declared

Each has a server of its own that starts cold, the same program, the same round trip between client and server, and the same
background. Between B and C stands the program declared to a server that takes calls as they come: so every difference between
neighbours has a name. What a server gains by knowing which calls begin alike counts as round trips there: both come of the
declaration alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

from parrot_sdk import Client
from parrot_server.demo.asking import DeclaringClient, LoopingClient
from parrot_server.demo.background import Background, Load
from parrot_server.demo.documents import CountTokens
from parrot_server.demo.far_client import far_client
from parrot_server.demo.workloads import Workload


@dataclass(frozen=True, slots=True)
class Configuration:
    """A client and a server.

    Args:
        name, what: for people.
        policy: in which order the server runs calls.
        declared: the client declares the program, and the background says that nobody waits for it.
        cached: prompts that begin alike are found in the prefix cache.
        at_once: a client that declares nothing sends calls that do not depend on each other together.
    """

    name: str
    what: str
    policy: str = "fcfs"
    declared: bool = False
    cached: bool = True
    at_once: bool = True


A = Configuration("A", "client loop, no prefix cache", cached=False)
B = Configuration("B", "client loop, the engine's prefix cache")
ONE_BY_ONE = Configuration("B1", "as B, but one map at a time", at_once=False)
IN_ORDER = Configuration("B2", "declared, but run in order of arrival", declared=True)
C = Configuration("C", "declared", policy="parrot", declared=True)
OF_CHAIN = (A, B, IN_ORDER, C)
OF_MAP_REDUCE = (A, ONE_BY_ONE, B, IN_ORDER, C)
GAINS = (("prefix cache", A, B), ("round trips", B, IN_ORDER), ("objective", IN_ORDER, C))


@dataclass(frozen=True, slots=True)
class Run:
    """What one configuration took.

    `wall_s` is from before the client's first request to the whole last answer, `requests` are the client's. Of the background:
    output tokens a second before and while the program ran, and for how many seconds of its work the program held it up.
    """

    name: str
    what: str
    wall_s: float
    requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    background_alone_tokens_s: float
    background_tokens_s: float
    background_lost_s: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """All runs of one program, and the conditions that were the same for all of them."""

    program: str
    what: str
    rtt_ms: float
    background: Load
    runs: tuple[Run, ...]

    def run_of(self, configuration: Configuration) -> Run:
        """The run of a configuration."""
        return next(run for run in self.runs if run.name == configuration.name)

    @property
    def gains_s(self) -> dict[str, float]:
        """What each step from A to C saves."""
        return {name: self.run_of(before).wall_s - self.run_of(after).wall_s for name, before, after in GAINS}

    @property
    def times_faster(self) -> dict[str, float]:
        """How many times faster C is than each other."""
        c = self.run_of(C)
        return {run.name: run.wall_s / c.wall_s for run in self.runs if run is not c}

    @property
    def background_loss(self) -> float:
        """The share of its tokens that the background loses by C against B, over the time that B takes.

        Once C's program has ended, the background is taken to go on as fast as before.
        """
        b, c = self.run_of(B), self.run_of(C)
        if not b.background_tokens_s:
            return 0.0
        beside_c = c.background_tokens_s * c.wall_s + c.background_alone_tokens_s * (b.wall_s - c.wall_s)
        return 1 - beside_c / (b.background_tokens_s * b.wall_s)

    def as_json(self) -> dict[str, Any]:
        """The comparison as JSON values."""
        derived = {"gains_s": self.gains_s, "times_faster": self.times_faster, "background_loss": self.background_loss}
        return asdict(self) | derived


Open = Callable[[Configuration], AbstractContextManager[Client]]
"""Starts a server for a configuration, with nothing in its cache, and stops it at the end of the block."""


async def compare(
    workload: Workload,
    configurations: Sequence[Configuration],
    open_server: Open,
    rtt_ms: float,
    load: Load,
    count_tokens: CountTokens,
    on_run: Callable[[Run], None] = lambda run: None,
) -> Comparison:
    """Run a program in all configurations. Raises parrot_sdk.ParrotError, and what `open_server` raises."""
    runs = []
    for configuration in configurations:
        with open_server(configuration) as near:
            background = Background(near, load, throughput=configuration is C, count_tokens=count_tokens)
            with far_client(near.connection.url, rtt_ms / 1e3) as far:
                runs.append(await _run(workload, configuration, far, background))
        on_run(runs[-1])
    return Comparison(workload.name, workload.what, rtt_ms, load, tuple(runs))


async def _run(workload: Workload, configuration: Configuration, far: Client, background: Background) -> Run:
    client = _client(configuration, far)
    async with background.running():
        alone_tokens_s = await background.rate()
        before, began_s = await background.server_tokens(), time.perf_counter()
        await client.run(workload.work)
        wall_s, requests = time.perf_counter() - began_s, far.http_requests
        made = await background.server_tokens() - before
        tokens = await client.tokens()
    tokens_s = max(0.0, made - tokens.output) / wall_s
    lost_s = wall_s * (1 - tokens_s / alone_tokens_s) if alone_tokens_s else 0.0
    return Run(
        name=configuration.name,
        what=configuration.what,
        wall_s=wall_s,
        requests=requests,
        prompt_tokens=tokens.prompt,
        cached_tokens=tokens.cached,
        output_tokens=tokens.output,
        background_alone_tokens_s=alone_tokens_s,
        background_tokens_s=tokens_s,
        background_lost_s=lost_s,
    )


def _client(configuration: Configuration, far: Client) -> DeclaringClient | LoopingClient:
    if configuration.declared:
        return DeclaringClient(far)
    return LoopingClient(far, cached=configuration.cached, at_once=configuration.at_once)
