"""The reference scenarios with other parameters than the reference: what must hold, and their arithmetic where it is known."""

from __future__ import annotations

import pytest

from parrot_server.core.cost import alone_s, prefill_s, step_s
from parrot_server.core.settings import SchedulerSettings
from parrot_server.sim.chain import Chain, three_ways
from parrot_server.sim.fan_out import ONE_BY_ONE, FanOut, run
from parrot_server.sim.machines import engine_named
from parrot_server.sim.world import Setup

H100 = engine_named("h100-7b")
SETUP = Setup(SchedulerSettings(), H100)


@pytest.mark.parametrize(
    ("maps", "prompt", "output"), [(16, 6000, 250), (64, 6000, 250), (8, 1000, 100), (2, 12_000, 30)]
)
def test_maps_one_by_one_and_together(maps: int, prompt: int, output: int) -> None:
    fan_out = FanOut(maps, prompt, output)
    one_by_one, deduced = (run(fan_out, policy, SETUP) for policy in (ONE_BY_ONE, "parrot"))
    reduce_s = alone_s(H100.cost, maps * output + 200, 400)
    batch_s = step_s(H100.cost, maps, maps * (prompt + output / 2))
    assert one_by_one.completion_s == pytest.approx(maps * alone_s(H100.cost, prompt, output) + reduce_s, rel=0.01)
    assert deduced.maps_s == pytest.approx(maps * prefill_s(H100.cost, prompt) + output * batch_s, rel=0.01)
    assert deduced.completion_s == pytest.approx(deduced.maps_s + reduce_s, rel=0.01)
    assert deduced.map_tpot_ms == pytest.approx(1e3 * batch_s, rel=0.01)


def test_the_time_per_token_of_a_map_is_what_speed_costs() -> None:
    one_by_one, deduced = (run(FanOut(), policy, SETUP) for policy in (ONE_BY_ONE, "parrot"))
    assert one_by_one.map_tpot_ms == pytest.approx(4.27, abs=0.05)
    assert deduced.map_tpot_ms == pytest.approx(7.85, abs=0.05)
    assert (round(one_by_one.completion_s, 1), round(deduced.completion_s, 1)) == (21.5, 6.4)


def test_a_client_loop_pays_its_edge_once_between_maps_and_reduce() -> None:
    loop = Setup(SchedulerSettings(), H100, declares=False, rtt_s=0.08, queue_s=0.15)
    declared, looped = run(FanOut(), "fcfs", SETUP), run(FanOut(), "fcfs", loop)
    assert looped.round_trips_s == pytest.approx(0.23)
    assert looped.completion_s == pytest.approx(declared.completion_s + 0.23)


@pytest.mark.parametrize(
    "chain",
    [
        Chain(ambient_tpot_s=0.008, rtt_s=0.01, queue_s=0.05),
        Chain(steps=8, first_tokens=500, growth_tokens=120, output_tokens=40, ambient_tpot_s=0.015),
        Chain(steps=24, ambient_tpot_s=0.012, rtt_s=0.1, queue_s=0.0),
    ],
)
def test_a_chain_three_ways_and_what_each_lever_is_worth(chain: Chain) -> None:
    cost = H100.cost
    a, b, c = three_ways(chain, H100)
    sent = sum(chain.first_tokens + chain.growth_tokens * step for step in range(chain.steps))
    distinct = chain.first_tokens + chain.growth_tokens * (chain.steps - 1)
    written = chain.steps * chain.output_tokens
    mean_context = (chain.first_tokens + distinct + chain.output_tokens) / 2
    assert a.prefill_s == pytest.approx(prefill_s(cost, sent))
    assert b.prefill_s == pytest.approx(prefill_s(cost, distinct))
    assert c.prefill_s == pytest.approx(prefill_s(cost, distinct))
    assert a.round_trips_s == b.round_trips_s == pytest.approx((chain.steps - 1) * (chain.rtt_s + chain.queue_s))
    assert c.round_trips_s == 0
    assert a.decode_s == pytest.approx(written * chain.ambient_tpot_s, rel=0.01)
    assert c.decode_s == pytest.approx(written * step_s(cost, 1, mean_context), rel=0.001)
    assert a.queued_s <= chain.steps * chain.ambient_tpot_s, "a call waits for the step that runs when it comes"
    for way in (a, b, c):
        assert way.completion_s == pytest.approx(way.prefill_s + way.decode_s + way.round_trips_s + way.queued_s)
    assert a.completion_s > b.completion_s > c.completion_s


def test_without_ambient_load_declaring_only_saves_the_round_trips() -> None:
    a, b, c = three_ways(Chain(steps=5, ambient_tpot_s=0.0), H100)
    assert b.completion_s - c.completion_s == pytest.approx(4 * 0.25)
    assert a.completion_s > b.completion_s
