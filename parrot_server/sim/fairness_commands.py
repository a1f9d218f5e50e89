"""`parrot simulate tenants` and `starvation`: who gets how much, and that everybody gets some."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from parrot_server.sim.options import EngineOption, JsonOption, PolicyOption, names_of, numbers_of
from parrot_server.sim.show import print_rows


def tenants(
    weights: Annotated[str, typer.Option(metavar="N,N", help="A weight for each tenant.")] = "1,2,4",
    seconds: Annotated[float, typer.Option(min=1)] = 60.0,
    seed: int = 1,
    policy: Annotated[str, typer.Option(metavar="NAME")] = "parrot",
    engine: EngineOption = "four-slots",
    as_json: JsonOption = False,
) -> None:
    """Tenants who all want more than there is: the share of the token-time that each receives, and the one it is due.

    \b
    Example:
      parrot simulate tenants --weights 1,2,4
    """
    from parrot_server.sim.machines import engine_named
    from parrot_server.sim.starvation import SLOTS
    from parrot_server.sim.tenants import run

    spec = SLOTS if engine == SLOTS.id else engine_named(engine)
    rows = run(numbers_of(weights, "--weights"), spec, policy, seconds, seed)
    print_rows([asdict(row) for row in rows], as_json)


def starvation(
    steps: Annotated[int, typer.Option(min=1, help="Of the agent.")] = 200,
    chats: Annotated[float, typer.Option(min=0.01, help="New chats a second; four slots run about 2.4.")] = 2.1,
    age_s: Annotated[float, typer.Option(min=0.001, help="Waiting so long raises a call by one level.")] = 0.2,
    seed: int = 1,
    policy: PolicyOption = "parrot",
    as_json: JsonOption = False,
) -> None:
    """A long agent under an endless stream of new chats: when it ends, how long it waits, and the bound on being overtaken.

    \b
    Example:
      parrot simulate starvation --steps 100 --policy parrot,fcfs
    """
    from parrot_server.sim.starvation import run

    print_rows([asdict(run(name, steps, chats, age_s, seed)) for name in names_of(policy)], as_json)
