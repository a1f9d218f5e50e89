"""`--compare` of the demos: a program in several configurations, each on a server of its own in this process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parrot_server.cli.engines import read_settings, server_for
from parrot_server.cli.terminal import note, say, say_json
from parrot_server.errors import SetupError

if TYPE_CHECKING:
    from parrot_sdk import Client
    from parrot_server.demo.background import Load
    from parrot_server.demo.compare import Comparison, Configuration, Run
    from parrot_server.demo.documents import CountTokens
    from parrot_server.demo.workloads import Workload

CompareOption = Annotated[
    bool, typer.Option("--compare", help="Run it as ordinary clients would, and declared, side by side.")
]
RttOption = Annotated[
    float, typer.Option("--rtt-ms", min=0, help="With --compare: round trip between client and server.")
]
BackgroundOption = Annotated[
    int, typer.Option("--background", min=0, help="With --compare: batch calls that always run beside it.")
]
SeedOption = Annotated[int, typer.Option("--seed", help="With --compare: of the background's prompts and lengths.")]


def refuse(wish: str, **options: object) -> None:
    """Raise SetupError for an option that does not go with another one."""
    if given := [name for name, value in options.items() if value is not None]:
        raise SetupError(f"--{given[0]} does not go with {wish}")


def compare_demo(
    make: Callable[[CountTokens], Workload],
    configurations: Sequence[Configuration],
    options: Mapping[str, Any],
    rtt_ms: float,
    decoders: int,
    seed: int,
    as_json: bool,
) -> None:
    """Compare and print.

    Args:
        make: makes the program, from a way to count tokens.
        configurations: in which it runs.
        options: which engine, as `server_for` takes them.
        rtt_ms: between client and server.
        decoders, seed: of the background.
        as_json: print JSON and nothing else.
    """
    from parrot_server.demo.background import Load
    from parrot_server.demo.compare_table import compare_table

    load = Load(decoders=decoders, seed=seed)
    comparison = compared(make, configurations, options, rtt_ms, load, _silent if as_json else note)
    if as_json:
        say_json(comparison.as_json())
    else:
        say(compare_table(comparison))


def compared(
    make: Callable[[CountTokens], Workload],
    configurations: Sequence[Configuration],
    options: Mapping[str, Any],
    rtt_ms: float,
    load: Load,
    tell: Callable[[str], None],
) -> Comparison:
    """Run a program in these configurations, each on a server that is started for it.

    Args:
        tell: told how long it may take, and what a configuration took, when it is done.

    Raises SetupError, parrot_sdk.ParrotError.
    """
    from parrot_server.demo.compare import compare
    from parrot_server.demo.tokens import counter

    if os.environ.get("PARROT_URL"):
        raise SetupError("--compare starts its own servers, but PARROT_URL names one: unset it")

    @contextmanager
    def open_server(configuration: Configuration) -> Iterator[Client]:
        with server_for(None, **options, policy=configuration.policy) as server:
            yield server.client

    def on_run(run: Run) -> None:
        tell(f"{run.name:2} {run.what}: {run.wall_s:.2f} s")

    count = counter(read_settings(**options)).tokens
    tell(
        f"{len(configurations)} configurations, one after another, each on a server that starts cold: "
        "about five minutes with the packaged model on two cores"
    )
    return asyncio.run(compare(make(count), configurations, open_server, rtt_ms, load, count, on_run))


def _silent(text: str) -> None:
    """Tell nobody."""
