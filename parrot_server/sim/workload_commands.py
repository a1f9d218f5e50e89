"""`parrot simulate trace` and `workload`: many programs under several policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parrot_server.sim.options import (
    ALL,
    ChunkOption,
    EngineOption,
    JournalOption,
    JsonOption,
    LoopOption,
    PictureOption,
    PolicyOption,
    QueueOption,
    RttOption,
    SeedsOption,
    names_of,
    setup_of,
)
from parrot_server.sim.show import print_reports, print_rows

if TYPE_CHECKING:
    from parrot_server.sim.contest import Source
    from parrot_server.sim.workload import ProgramShape
    from parrot_server.sim.world import Setup


def trace(
    file: Annotated[Path, typer.Argument(help="A workload, one program a line; `workload --write` shows the form.")],
    policy: PolicyOption = "parrot,fcfs",
    engine: EngineOption = "h100-7b",
    chunk_tokens: ChunkOption = 0,
    client_loop: LoopOption = False,
    rtt_ms: RttOption = 50.0,
    queue_ms: QueueOption = 200.0,
    picture: PictureOption = None,
    journal: JournalOption = None,
    as_json: JsonOption = False,
) -> None:
    """A workload of your own, from a file: one program a line, as JSON. All but ids, calls and their tokens may be left out.

    \b
    A program has
      id, calls      a name, and calls that wait for earlier ones only
      kind, tenant   what it is reported under; whose it is
      at_s           when it comes, in seconds
      priority, deadline_s   what its user wishes
      live           true: its client adds each call when it knows that there is one
    A call has
      id             a name in its program
      own_tokens     of its prompt, without what the next three bring
      heads          beginnings that other calls have too, as [["name", tokens], ...]
      extends        the call with whose whole prompt and answer its prompt begins
      reads          calls whose answers stand in its prompt
      output_tokens  of its answer; max_tokens: what the scheduler is told of that
      function       calls of one function are predicted from each other
      stall_s        how long a tool or a person takes before it
      criterion      "latency" or "throughput", if anything is wished
      prefilled      true: its prompt is read for nothing

    \b
    A line
      {"id": "p1", "calls": [{"id": "a", "own_tokens": 6000, "output_tokens": 250},
      {"id": "b", "own_tokens": 200, "output_tokens": 400, "reads": ["a"]}]}

    \b
    Examples:
      parrot simulate workload fan-out --write workload.jsonl
      parrot simulate trace workload.jsonl --policy parrot,feedback
    """
    from parrot_server.sim.contest import Source

    setup = setup_of(engine, chunk_tokens, client_loop, rtt_ms, queue_ms)
    _contest(Source(trace=file), policy, [0], setup, picture, journal, as_json)


def workload(
    name: Annotated[str, typer.Argument(help="A preset; `list` prints which there are.")],
    seeds: SeedsOption = 1,
    policy: PolicyOption = ALL,
    engine: EngineOption = "h100-7b",
    chunk_tokens: ChunkOption = 0,
    client_loop: LoopOption = False,
    rtt_ms: RttOption = 50.0,
    queue_ms: QueueOption = 200.0,
    picture: PictureOption = None,
    journal: JournalOption = None,
    write: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the workload of seed 1 to a new file, and stop.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """A known workload: those of the Parrot paper, and a map-reduce beside agents and chats that more than fill the engine.

    \b
    Examples:
      parrot simulate workload fan-out --seeds 10
      parrot simulate workload multi-agent --engine a100-13b --client-loop
    """
    from parrot_server.sim.contest import Source
    from parrot_server.sim.presets import PRESETS, preset
    from parrot_server.sim.trace import trace_lines

    if name == "list":
        print_rows([{"name": each, "what": make.__doc__} for each, make in PRESETS.items()], as_json)
    elif write is not None:
        lines = list(trace_lines(preset(name, 1)))
        with write.open("x", encoding="utf-8") as file:
            file.write("\n".join([*lines, ""]))
        print_rows([{"file": str(write), "programs": len(lines)}], as_json)
    else:
        setup = setup_of(engine, chunk_tokens, client_loop, rtt_ms, queue_ms)
        _contest(Source(preset=name), policy, list(range(1, seeds + 1)), setup, picture, journal, as_json)


def _contest(
    source: Source,
    policy: str,
    seeds: Sequence[int],
    setup: Setup,
    picture: Path | None,
    journal: Path | None,
    as_json: bool,
) -> None:
    from parrot_server.sim import contest

    policies = names_of(policy)
    reports = contest.contest(source, policies, seeds, setup)
    if picture or journal:
        _draw(source.programs(seeds[0]), policies[0], setup, picture, journal)
    rows, compared = contest.rows(reports), contest.comparisons(reports) if len(seeds) > 1 else []
    print_reports(rows, as_json, paired=[asdict(one) for one in compared])


def _draw(
    programs: Sequence[ProgramShape], policy: str, setup: Setup, picture: Path | None, journal: Path | None
) -> None:
    """Run one policy again, to draw it or to write its journal."""
    from parrot_server.sim.contest import play
    from parrot_server.sim.picture import gantt
    from parrot_server.sim.replay import Recorder

    recorder = Recorder(journal, replace(setup.settings, policy=policy)) if journal else None
    world = play(programs, policy, setup, recorder.observe if recorder else None)
    if recorder:
        recorder.close()
    if picture:
        picture.write_text(gantt(f"{policy} on {setup.engine.id}", list(world.programs.values())), encoding="utf-8")
