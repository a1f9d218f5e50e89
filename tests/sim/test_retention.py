"""What repeated prompts gain, by simulation; and what becomes of KV over a stall."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest

from parrot_server.core.cost import prefill_s, roofline, swap_s
from parrot_server.core.events import Action, Event, Keep
from parrot_server.core.model import CostModel, Tier
from parrot_server.core.retention import Fate, Stall, cheapest, wastes_token_s
from parrot_server.core.settings import SchedulerSettings
from parrot_server.sim.cache import Repeats, run
from parrot_server.sim.machines import MACHINES, MODELS, engine_named
from parrot_server.sim.programs import conversation
from parrot_server.sim.world import Setup, World

LAPTOP = CostModel(prefill_token_s=1 / 700, step_s=0.02, offload_token_s=2e-5)


def test_each_fate_is_taken_somewhere_and_is_the_cheapest_there() -> None:
    taken = set()
    for stall_s, pressure, host in product((0.2, 2.0, 20.0), (0.0, 1.0), (0, 10**6)):
        stall = Stall(tokens=1500, stall_s=stall_s, pressure=pressure, batch_tokens=3000, host_free_tokens=host)
        wastes = wastes_token_s(stall, LAPTOP)
        fate = cheapest(stall, LAPTOP)
        assert wastes[fate] == min(wastes.values())
        assert (Fate.OFFLOAD in wastes) == (host > 0)
        taken.add(fate)
        if not pressure:
            assert fate is Fate.KEEP, "an engine that nobody waits for loses nothing by keeping"
    assert taken == set(Fate)


def test_the_longer_the_stall_the_sooner_it_is_let_go() -> None:
    cost = roofline(MODELS["13b"], MACHINES["h100"])
    fates = [cheapest(Stall(16_384, stall_s, 1.0, 50_000, 10**6), cost) for stall_s in (0.1, 1.0, 10.0, 100.0)]
    assert fates[0] is Fate.KEEP
    assert fates[-1] is Fate.OFFLOAD
    assert fates == sorted(fates, key=list(Fate).index)
    assert swap_s(cost, 16_384) == pytest.approx(0.42, rel=0.01)
    assert prefill_s(cost, 16_384) == pytest.approx(0.86, rel=0.01)


def test_without_room_on_the_host_it_is_computed_again() -> None:
    assert cheapest(Stall(1000, 100.0, 1.0, 0, host_free_tokens=999), LAPTOP) is Fate.DROP


@pytest.mark.parametrize("repeat", [0.03, 0.72, 0.94, 0.99])
def test_pins_reach_the_ceiling_that_lru_misses(repeat: float) -> None:
    repeats, engine = Repeats(repeat, programs=6, calls=150), engine_named("h100")
    lru, pins = run(repeats, engine, pins=False), run(repeats, engine, pins=True)
    assert lru.missed == pytest.approx(0.2, abs=0.03)
    assert lru.gain == pytest.approx(1 / (1 - (1 - lru.missed) * repeat), rel=0.02)
    assert pins.missed == 0
    assert pins.gain == pytest.approx(pins.ceiling, rel=0.01)


def test_at_99_percent_a_fifth_of_misses_costs_nearly_everything() -> None:
    repeats, engine = Repeats(0.99, programs=6, calls=150), engine_named("h100")
    assert run(repeats, engine, pins=False).gain == pytest.approx(4.8, abs=0.4)
    assert run(repeats, engine, pins=True).gain > 95


def agents(host_tokens: int) -> tuple[World, Counter[Tier]]:
    """Six agents whose tools take four seconds, on an engine with room for the KV of three; what its cache was asked."""
    engine = replace(engine_named("h100"), kv_tokens=20_000, max_running=8, host_tokens=host_tokens)
    asked: Counter[Tier] = Counter()

    def observe(now_s: float, event: Event, actions: list[Action]) -> None:
        made.simulation.scheduler.validate()
        asked.update(action.tier for action in actions if isinstance(action, Keep))

    made = World(Setup(SchedulerSettings(), engine), observe=observe)
    for number in range(6):
        turns = [(6_000, 100, 0.0), *[(200, 100, 4.0)] * 5]
        made.add(conversation(f"agent_{number}", turns, at_s=0.7 * number, kind="agent"))
    made.run()
    return made, asked


def test_what_agents_have_read_is_moved_out_while_others_want_its_room_and_comes_back() -> None:
    without, never = agents(host_tokens=0)
    with_host, asked = agents(host_tokens=100_000)
    assert never[Tier.HOST] == 0
    assert asked[Tier.HOST] >= 3
    assert with_host.engine.totals.computed_tokens < without.engine.totals.computed_tokens
    assert with_host.engine.kv.make_room(20_000), "something is held for agents that have ended"
