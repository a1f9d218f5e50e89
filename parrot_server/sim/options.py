"""Options that several commands of `parrot simulate` share, and how they are read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parrot_server.core.settings import SchedulerSettings
from parrot_server.errors import SetupError

if TYPE_CHECKING:
    from parrot_server.sim.world import Setup

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else there.")]
PolicyOption = Annotated[str, typer.Option("--policy", metavar="A,B,C", help="Policies to compare, side by side.")]
EngineOption = Annotated[
    str,
    typer.Option("--engine", metavar="PRESET", help="[Nx]{h100,h200,a100,cpu}[-{7b,13b,70b}], as h100 or 4xh100-70b."),
]
ChunkOption = Annotated[
    int,
    typer.Option("--chunk-tokens", min=0, help="Prefill in such chunks beside decodes; 0: whole prompts, serially."),
]
LoopOption = Annotated[
    bool, typer.Option("--client-loop", help="Clients keep the structure, and send one call after another.")
]
RttOption = Annotated[float, typer.Option("--rtt-ms", min=0, help="A client loop's way to the client and back.")]
QueueOption = Annotated[float, typer.Option("--queue-ms", min=0, help="A client loop's wait in line for each call.")]
PictureOption = Annotated[
    Path | None, typer.Option("--picture", metavar="FILE.svg", help="Draw the first policy's run, a bar a call.")
]
JournalOption = Annotated[
    Path | None, typer.Option("--journal", metavar="FILE", help="Write the first policy's events to a new journal.")
]
SeedsOption = Annotated[int, typer.Option("--seeds", min=1, help="Run so many seeds, and compare pair by pair.")]
ALL = "parrot,fcfs,request-fair,program-fcfs,program-fair,least-attained-service,feedback,shortest-first"


def setup_of(engine: str, chunk_tokens: int, client_loop: bool, rtt_ms: float, queue_ms: float) -> Setup:
    """How a workload is served, as the options say. Raises SetupError."""
    from parrot_server.sim.machines import engine_named
    from parrot_server.sim.world import Setup

    return Setup(
        SchedulerSettings(),
        engine_named(engine),
        chunk_tokens=chunk_tokens or None,
        declares=not client_loop,
        rtt_s=rtt_ms / 1e3,
        queue_s=queue_ms / 1e3,
    )


def names_of(said: str) -> list[str]:
    """Names with commas between them. Raises SetupError."""
    names = [name.strip() for name in said.split(",") if name.strip()]
    if not names:
        raise SetupError("--policy names no policy")
    return list(dict.fromkeys(names))


def whole_numbers(said: str, option: str) -> list[int]:
    """Whole numbers with commas between them, in order. Raises SetupError."""
    numbers = [int(part) for part in said.split(",") if part.strip().isdigit()]
    if not numbers or len(numbers) != said.count(",") + 1 or min(numbers) < 1:
        raise SetupError(f"{option} takes whole numbers from 1, as 200,800 (given: {said!r})")
    return sorted(numbers)


def shares_of(said: str, option: str) -> list[float]:
    """Shares with commas between them. Raises SetupError."""
    shares = numbers_of(said, option)
    if max(shares) >= 1:
        raise SetupError(f"{option} takes numbers between 0 and 1, as 0.72,0.99 (given: {said!r})")
    return shares


def numbers_of(said: str, option: str) -> list[float]:
    """Positive numbers with commas between them. Raises SetupError."""
    try:
        numbers = [float(part) for part in said.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(0 < number < 1e6 for number in numbers):
        raise SetupError(f"{option} takes positive numbers, as 1,2,4 (given: {said!r})")
    return numbers
