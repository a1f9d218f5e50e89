"""One map-reduce program by itself: every call critical for latency, one at a time, against what the scheduler deduces."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean

from parrot_server.sim.programs import map_reduce
from parrot_server.sim.world import Setup, World

ONE_BY_ONE = (
    "latency-critical"  # not a policy of the server: every map is marked, and one expedited call runs at a time
)


@dataclass(frozen=True, slots=True)
class FanOut:
    """A map-reduce program; see `programs.map_reduce`."""

    maps: int = 16
    prompt_tokens: int = 6000
    output_tokens: int = 250
    reduce_tokens: int = 200
    reduce_output_tokens: int = 400


@dataclass(frozen=True, slots=True)
class FanOutRun:
    """What it took; `maps_s` until the last map ended, `map_tpot_ms` the mean time per token of a map once it writes."""

    name: str
    completion_s: float
    maps_s: float
    reduce_s: float
    map_tpot_ms: float
    map_ttft_ms: float
    round_trips_s: float


def run(fan_out: FanOut, policy: str, setup: Setup) -> FanOutRun:
    """The program under a policy, or one by one (`ONE_BY_ONE`)."""
    critical = policy == ONE_BY_ONE
    settings = replace(setup.settings, policy="parrot" if critical else policy)
    if critical:
        settings = replace(settings, expedited_together=1)
    world = World(replace(setup, settings=settings))
    shape = map_reduce(
        "map-reduce",
        fan_out.maps,
        fan_out.prompt_tokens,
        fan_out.output_tokens,
        fan_out.reduce_tokens,
        fan_out.reduce_output_tokens,
        critical=critical,
    )
    world.add(shape)
    world.run()
    record = world.programs["map-reduce"]
    reduce = record.calls["reduce"]
    maps = [call for call in record.calls.values() if call is not reduce]
    last_s = max(call.ended_s for call in maps)
    steps = max(1, fan_out.output_tokens - 1)
    return FanOutRun(
        name=policy,
        completion_s=record.completion_s,
        maps_s=last_s - record.submitted_s,
        reduce_s=reduce.ended_s - last_s,
        map_tpot_ms=1e3 * fmean((call.ended_s - call.first_token_s) / steps for call in maps),
        map_ttft_ms=1e3 * fmean(call.first_token_s - record.submitted_s for call in maps),
        round_trips_s=record.edges_s,
    )
