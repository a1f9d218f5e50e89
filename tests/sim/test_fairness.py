"""Who gets how much, and that everybody gets some: shares of tenants, programs whole, and a bound on being overtaken."""

from __future__ import annotations

from random import Random
from statistics import fmean

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from parrot_server.core.policy import overtaken_at_most_s
from parrot_server.core.settings import SchedulerSettings
from parrot_server.sim import contest, starvation, tenants
from parrot_server.sim.arrivals import poisson
from parrot_server.sim.machines import engine_named
from parrot_server.sim.presets import preset
from parrot_server.sim.programs import conversation, map_reduce
from parrot_server.sim.starvation import SLOTS, Waits
from parrot_server.sim.tenants import KINDS
from parrot_server.sim.workload import CallShape, ProgramShape
from parrot_server.sim.world import Setup, World

from .worlds import play, small, world


def chat(name: str, at_s: float = 0.0, tenant: str = "", tokens: int = 50, turns: int = 3) -> ProgramShape:
    return conversation(name, [(100, tokens, 0.0)] * turns, at_s=at_s, tenant=tenant)


# ---- tenants


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    weights=st.sampled_from([(1.0, 2.0, 4.0), (3.0, 1.0, 1.0), (2.0, 2.0, 1.0)]),
    kinds=st.tuples(*[st.sampled_from(KINDS)] * 3),
    policy=st.sampled_from(["parrot", "fcfs"]),
    seed=st.integers(0, 1000),
)
def test_tenants_under_saturation_receive_by_their_weights(
    weights: tuple[float, ...], kinds: tuple[str, ...], policy: str, seed: int
) -> None:
    for tenant in tenants.run(weights, SLOTS, policy, 60.0, seed, kinds):
        assert tenant.share == pytest.approx(tenant.wanted, rel=0.05)


def test_a_new_program_does_not_reset_what_its_tenant_has_had() -> None:
    many = [chat(f"many {n}", tenant="many", turns=1) for n in range(200)]
    made = play([*many, *(chat(f"few {n}", tenant="few", turns=1, at_s=2.0) for n in range(20))], SLOTS)
    few = [record.completion_s for record in made.programs.values() if record.shape.tenant == "few"]
    late = [record.ended_s or 0 for record in made.programs.values() if record.shape.tenant == "many"]
    assert max(few) + 2.0 < 0.6 * max(late), (
        "the one who waited least has half of the engine, however many calls the other sends"
    )


# ---- programs


def test_width_counts_and_a_join_does_not_inherit_it() -> None:
    wide = map_reduce("wide", 16, 100, 50)
    made = World(Setup(SchedulerSettings(), small(SLOTS, max_running=16)))
    made.add(wide)
    made.run()
    scheduler = made.simulation.scheduler
    program = scheduler._state.programs["wide"]
    steps = {step.call.id: step for step in program.steps.values()}
    one, reduce = steps["map_0"].attained_token_s, steps["reduce"]
    assert program.attained_token_s == pytest.approx(16 * one + reduce.attained_token_s, rel=0.1)
    assert reduce.inherited_token_s <= 1.01 * max(steps[f"map_{i}"].attained_token_s for i in range(16))


def test_a_program_is_not_half_admitted() -> None:
    """With room for one of two map-reduce programs, the second's maps do not take the first one's place."""
    engine = small(SLOTS, max_running=4)
    programs = [map_reduce(name, 16, 200, 100, at_s=at_s) for name, at_s in (("first", 0.0), ("second", 0.05))]
    whole, interleaved = play(programs, engine), play(programs, engine, policy="program-fair")
    maps = {name: [whole.programs[name].calls[f"map_{i}"] for i in range(16)] for name in ("first", "second")}
    assert max(call.started_s for call in maps["first"]) <= min(call.started_s for call in maps["second"])
    assert whole.programs["first"].calls["reduce"].started_s < maps["second"][8].started_s
    means = [fmean(record.completion_s for record in made.programs.values()) for made in (whole, interleaved)]
    assert means[0] < 0.9 * means[1], f"whole {means[0]:.2f} s, interleaved {means[1]:.2f} s"


def test_the_straggler_of_a_join_is_expedited_when_its_siblings_are_done() -> None:
    made = world()
    made.add(map_reduce("p", 4, 100, [20, 20, 20, 400]))
    made.simulation.at(1.0, made.simulation.stop)
    made.run()
    nodes = {node.key.call: node for node in made.simulation.scheduler.graph("p").nodes}
    assert nodes["map_3"].objective.value == "expedite"
    assert nodes["map_0"].objective.value == "batch"


# ---- nobody starves


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10**6),
    age_s=st.sampled_from([0.02, 0.1]),
    slots=st.integers(1, 4),
    kv_tokens=st.sampled_from([1500, 10**6]),
    load=st.floats(0.8, 2.0),
)
@example(seed=220, age_s=0.02, slots=1, kv_tokens=1500, load=1.6064415608961737)  # one paused and resumed for ever
@example(seed=4901, age_s=0.02, slots=3, kv_tokens=1500, load=1.867)
def test_no_call_is_overtaken_by_one_that_came_much_later(
    seed: int, age_s: float, slots: int, kv_tokens: int, load: float
) -> None:
    rng, waits = Random(seed), Waits()
    scheduler = SchedulerSettings(age_s=age_s, patience_s=0.5, quantum_token_s=50.0)
    made = World(Setup(scheduler, small(max_running=slots, kv_tokens=kv_tokens)), observe=waits.observe)
    for n, at_s in enumerate(poisson(rng, load * slots / 1.5, 20.0)):
        made.add(random_program(rng, f"p{n}", at_s))
    made.run()
    assert all(record.ended_s is not None for record in made.programs.values())
    assert waits.most_overtaken_s() <= overtaken_at_most_s(scheduler)


def random_program(rng: Random, name: str, at_s: float) -> ProgramShape:
    kind = rng.choice(["chat", "map-reduce", "background", "agent"])
    if kind == "map-reduce":
        maps = rng.randint(2, 8)
        return map_reduce(name, maps, 100, [rng.randint(5, 60) for _ in range(maps)], 10, 20, at_s=at_s)
    if kind == "background":
        calls = tuple(CallShape(f"c{i}", 100, rng.randint(5, 60), criterion="throughput") for i in range(4))
        return ProgramShape(name, calls, kind=kind, at_s=at_s)
    return chat(name, at_s, tokens=rng.randint(5, 50), turns=3 if kind == "chat" else 10)


def test_an_agent_of_200_steps_ends_under_an_endless_stream_of_new_chats() -> None:
    agent = starvation.run("parrot", steps=200, chats_s=2.1, age_s=0.2)
    assert agent.steps == 200
    assert agent.chats > 300
    assert agent.overtaken_s <= agent.bound_s
    assert agent.longest_wait_s <= agent.bound_s


def test_two_programs_of_which_one_fills_the_memory_run_one_after_the_other() -> None:
    setup = Setup(SchedulerSettings(), engine_named("h100"))
    means = {
        policy: fmean(
            record.completion_s for record in contest.play(preset("two-programs", 1), policy, setup).programs.values()
        )
        for policy in ("parrot", "program-fair")
    }
    assert means["parrot"] < 0.9 * means["program-fair"], means
