"""What a demo's run gave, and what each of its calls took."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from parrot_sdk import Client, Program, Variable
from parrot_sdk.wire import GraphReply


@dataclass(frozen=True, slots=True)
class CallFigures:
    """One call. `queue_s` is from its inputs set to its start in the engine, `wall_s` from its inputs set to its end."""

    id: str
    function: str
    objective: str
    queue_s: float
    wall_s: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Report:
    """One run. `wall_s` is from before the first request to the whole answer; `http_requests` are the client's, all of them."""

    answer: str
    wall_s: float
    http_requests: int
    calls: tuple[CallFigures, ...]

    def as_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        return asdict(self)


def run(client: Client, name: str, build: Callable[[], Variable[str]], on_text: Callable[[str], None]) -> Report:
    """Send the program whose calls `build` makes, and read its answer as it comes. On Ctrl-C the program is cancelled.

    Raises parrot_sdk.ParrotError.
    """
    requests_before, began_s = client.http_requests, time.perf_counter()
    program = client.program(name)
    try:
        with program:
            answer = build()
        text = _read(answer, on_text)
    except KeyboardInterrupt:
        program.cancel()
        raise
    wall_s = time.perf_counter() - began_s
    calls = _figures(_graph(program))
    return Report(text, round(wall_s, 3), client.http_requests - requests_before, calls)


def _read(answer: Variable[str], on_text: Callable[[str], None]) -> str:
    """Through one stream: however long it takes, it is one request."""
    pieces: list[str] = []
    for piece in answer.stream(on_reset=pieces.clear):
        pieces.append(piece)
        on_text("".join(pieces))
    return "".join(pieces).strip()


def _graph(program: Program) -> GraphReply:
    return GraphReply.model_validate(program.graph())


def _figures(graph: GraphReply) -> tuple[CallFigures, ...]:
    return tuple(
        CallFigures(
            id=node.id,
            function=node.function,
            objective=node.objective,
            queue_s=round(node.timing.queue_s or 0.0, 4),
            wall_s=round(node.timing.wall_s or 0.0, 4),
            prompt_tokens=node.usage.prompt_tokens,
            cached_tokens=node.usage.cached_tokens,
            output_tokens=node.usage.output_tokens,
        )
        for node in graph.nodes
    )
