"""`parrot simulate`: the scheduler that serves, on a virtual clock."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from parrot_server.errors import SetupError
from parrot_server.sim.fairness_commands import starvation, tenants
from parrot_server.sim.options import (
    ChunkOption,
    EngineOption,
    JsonOption,
    LoopOption,
    PolicyOption,
    QueueOption,
    RttOption,
    names_of,
    setup_of,
    shares_of,
    whole_numbers,
)
from parrot_server.sim.show import print_json, print_reports, print_rows, print_table
from parrot_server.sim.workload_commands import trace, workload

app = typer.Typer(
    rich_markup_mode=None,
    help="Run the scheduler on a virtual clock, against an engine that is arithmetic.",
)


@app.command()
def figures(as_json: JsonOption = False) -> None:
    """Every reference figure: reached by running the scheduler, or from its cost model, beside the value that is printed.

    \b
    Example:
      parrot simulate figures --json
    """
    from parrot_server.sim.figures import figures as reach

    found = reach()
    if as_json:
        print_json([{"id": f.id, "value": f.value, "unit": f.unit, "printed": f.printed} for f in found])
        return
    rows: list[dict[str, Any]] = [
        {**asdict(figure), "how": "simulated" if figure.simulated else "closed form"} for figure in found
    ]
    names = [("id", "id"), ("value", "value"), ("printed", "printed"), ("unit", "unit"), ("how", "how")]
    print_table(rows, [*names, ("what", "statement")])


@app.command("map-reduce")
def map_reduce(
    maps: Annotated[int, typer.Option(min=1)] = 16,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Of each map.")] = 6000,
    output_tokens: Annotated[int, typer.Option(min=1, help="Of each map.")] = 250,
    reduce_tokens: Annotated[int, typer.Option(min=0, help="Of the reduce, beside the maps' answers.")] = 200,
    reduce_output_tokens: Annotated[int, typer.Option(min=1)] = 400,
    policy: PolicyOption = "latency-critical,parrot",
    engine: EngineOption = "h100-7b",
    chunk_tokens: ChunkOption = 0,
    client_loop: LoopOption = False,
    rtt_ms: RttOption = 50.0,
    queue_ms: QueueOption = 200.0,
    as_json: JsonOption = False,
) -> None:
    """One map-reduce program by itself: with every call critical for latency, one at a time, and as the scheduler deduces it.

    \b
    Examples:
      parrot simulate map-reduce --maps 64
      parrot simulate map-reduce --policy latency-critical,fcfs,parrot --engine a100-13b
      parrot simulate map-reduce --client-loop --rtt-ms 80 --queue-ms 150
    """
    from parrot_server.sim.fan_out import FanOut, run

    setup = setup_of(engine, chunk_tokens, client_loop, rtt_ms, queue_ms)
    shape = FanOut(maps, prompt_tokens, output_tokens, reduce_tokens, reduce_output_tokens)
    rows = [asdict(run(shape, name, setup)) for name in names_of(policy)]
    print_rows(rows, as_json)


@app.command()
def chain(
    steps: Annotated[int, typer.Option(min=1)] = 20,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Of the first step.")] = 2000,
    growth_tokens: Annotated[int, typer.Option(min=0, help="By which each prompt grows, answers included.")] = 300,
    output_tokens: Annotated[int, typer.Option(min=1, help="Of each step.")] = 80,
    ambient_tpot_ms: Annotated[
        float, typer.Option(min=0, help="Time per token under the ambient load; 0: no load.")
    ] = 22.6,
    policy: PolicyOption = "parrot",
    engine: EngineOption = "h100-7b",
    rtt_ms: RttOption = 50.0,
    queue_ms: QueueOption = 200.0,
    as_json: JsonOption = False,
) -> None:
    """A chain on a busy engine: A a client loop without prefix cache, B with one, C the declared program.

    \b
    Examples:
      parrot simulate chain
      parrot simulate chain --steps 50 --ambient-tpot-ms 8 --rtt-ms 10 --queue-ms 50
    """
    from parrot_server.sim.chain import Chain, three_ways
    from parrot_server.sim.machines import engine_named

    shape = Chain(
        steps, prompt_tokens, growth_tokens, output_tokens, rtt_ms / 1e3, queue_ms / 1e3, ambient_tpot_ms / 1e3
    )
    rows = [asdict(run) for run in three_ways(shape, engine_named(engine), tuple(names_of(policy)))]
    print_rows(rows, as_json)


@app.command()
def mix(
    chats: Annotated[int, typer.Option(min=0)] = 100,
    chat_calls: Annotated[int, typer.Option(min=1)] = 3,
    chat_units: Annotated[int, typer.Option(min=1, help="Of each chat in all.")] = 200,
    agents: Annotated[int, typer.Option(min=0)] = 10,
    agent_calls: Annotated[int, typer.Option(min=1)] = 200,
    agent_units: Annotated[int, typer.Option(min=1, help="Of each agent in all.")] = 16_000,
    at_once: Annotated[
        bool, typer.Option("--at-once", help="All calls stand in the queue at once, instead of one a program.")
    ] = False,
    quantum: Annotated[int, typer.Option(min=1, help="A running call may be preempted after so many units.")] = 1,
    levels: Annotated[
        str, typer.Option(metavar="N,N", help="Units at which a program sinks a level, under feedback.")
    ] = "200",
    policy: PolicyOption = "shortest-first,longest-first,program-fair,feedback",
    engine: Annotated[
        str, typer.Option("--engine", metavar="PRESET", help="one-at-a-time, or a machine as elsewhere.")
    ] = "one-at-a-time",
    as_json: JsonOption = False,
) -> None:
    """Chats and agents that all come at once, agents first, on a server that runs one call at a time: what order alone is worth.

    \b
    Examples:
      parrot simulate mix --policy parrot,fcfs,feedback
      parrot simulate mix --at-once --policy request-fair,program-fair
    """
    from parrot_server.sim.machines import engine_named
    from parrot_server.sim.mix import Mix, run
    from parrot_server.sim.report import report

    sinks = tuple(whole_numbers(levels, "--levels"))
    shape = Mix(chats, chat_calls, chat_units, agents, agent_calls, agent_units, at_once, quantum, sinks)
    if not chats + agents:
        raise SetupError("there is nothing to run: say --chats or --agents")
    real = None if engine == "one-at-a-time" else engine_named(engine)
    rows = []
    for name in names_of(policy):
        done = run(shape, name, real)
        rows.append({**report(name, done.world).row(), "agent_advantage": done.agent_advantage})
    unit = "s" if real else "units"
    print_reports(rows, as_json, more=[("agent : chat", "agent_advantage")] if at_once else [], unit=unit)


@app.command()
def retention(
    repeat: Annotated[
        str, typer.Option(metavar="R,R", help="Shares of all tokens that were sent before.")
    ] = "0.03,0.72,0.94,0.99",
    miss: Annotated[float, typer.Option(min=0.01, max=0.99, help="Share of look-ups that LRU is to miss.")] = 0.2,
    programs: Annotated[int, typer.Option(min=1)] = 6,
    calls: Annotated[int, typer.Option(min=2, help="Of each program.")] = 150,
    prompt_tokens: Annotated[int, typer.Option(min=1)] = 10_000,
    flood_tokens: Annotated[int, typer.Option(min=1, help="Of each prompt that nobody uses again.")] = 10_000,
    seed: int = 1,
    engine: EngineOption = "h100-7b",
    as_json: JsonOption = False,
) -> None:
    """Prompts that repeat, in a cache too small for everything: least recently used, against pins by reference count.

    \b
    Example:
      parrot simulate retention --repeat 0.5,0.9 --miss 0.3
    """
    from parrot_server.sim.cache import Repeats, run
    from parrot_server.sim.machines import engine_named

    rows = []
    for share in shares_of(repeat, "--repeat"):
        shape = Repeats(share, miss, programs, calls, prompt_tokens, flood_tokens, seed=seed)
        rows += [asdict(run(shape, engine_named(engine), pins)) for pins in (False, True)]
    print_rows(rows, as_json)


@app.command()
def replay(
    journal: Annotated[Path, typer.Argument(help="A journal that a server or a simulation wrote.")],
    as_json: JsonOption = False,
) -> None:
    """Play a journal again, and say what the scheduler did, as a hash of all its actions.

    \b
    Example:
      parrot simulate replay server.journal
    """
    from parrot_server.sim.replay import digest
    from parrot_server.sim.replay import replay as play

    events, actions, found = digest(play(journal))
    row = {"events": events, "actions": actions, "sha256": found}
    print_json(row) if as_json else print(f"{events} events, {actions} actions, sha256 {found}")


app.command()(trace)
app.command()(workload)
app.command()(tenants)
app.command()(starvation)
