"""The roofline engine does in virtual time what its arithmetic says, and obeys the scheduler between its steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parrot_server.core.cost import alone_s, prefill_s
from parrot_server.core.model import CostModel
from parrot_server.core.settings import SchedulerSettings
from parrot_server.errors import SetupError
from parrot_server.sim.machines import engine_named
from parrot_server.sim.workload import CallShape, ProgramShape
from parrot_server.sim.world import Setup, World

from .worlds import SLOTS, play, small

COSTLY = CostModel(prefill_token_s=1e-3, step_s=0.01, sequence_s=0.001, resident_token_s=1e-5, offload_token_s=1e-4)
ENGINE = small(cost=COSTLY)


def one(name: str = "p", prompt: int = 100, output: int = 50, at_s: float = 0.0, **more: object) -> ProgramShape:
    return ProgramShape(name, (CallShape("c", prompt, output, **more),), at_s=at_s)  # type: ignore[arg-type]


def test_a_call_alone_takes_what_the_cost_model_says() -> None:
    record = play([one()], ENGINE).programs["p"]
    growth_s = 50 * 49 / 2 * COSTLY.resident_token_s
    expected_s = prefill_s(COSTLY, 100) + 50 * (0.01 + 0.001 + 100 * 1e-5) + growth_s
    assert record.completion_s == pytest.approx(expected_s)
    assert record.completion_s == pytest.approx(alone_s(COSTLY, 100, 50), rel=0.01)
    call = record.calls["c"]
    assert (call.prompt_tokens, call.cached_tokens, call.output_tokens) == (100, 0, 50)
    assert call.prefilled_s == pytest.approx(0.1)
    assert call.first_token_s == pytest.approx(0.1 + 0.012)


def test_serial_prefill_stalls_the_batch_and_chunked_prefill_shares_its_steps() -> None:
    programs = [one("a"), one("b", prompt=2000, at_s=0.3)]
    serial = play(programs, ENGINE).programs["a"].completion_s
    setup = Setup(SchedulerSettings(), ENGINE, chunk_tokens=100)
    chunked = World(setup)
    for program in programs:
        chunked.add(program)
    chunked.run()
    assert serial > 2.0 + 0.5
    assert chunked.programs["a"].completion_s > alone_s(COSTLY, 100, 50)
    reading = [chunked.programs[name].calls["c"] for name in "ab"]
    assert reading[1].first_token_s == pytest.approx(0.3 + 2.0, rel=0.05), "compute is the bound while chunks are read"
    assert reading[0].ended_s > reading[1].first_token_s
    assert chunked.programs["b"].completion_s < play(programs, ENGINE).programs["b"].completion_s + 2.0


def test_calls_decode_together_and_each_slows_the_others() -> None:
    alone = play([one()], ENGINE).programs["p"].calls["c"]
    together = play([one(f"p{i}") for i in range(4)], ENGINE).programs["p3"].calls["c"]
    assert together.ended_s - together.first_token_s > 1.2 * (alone.ended_s - alone.first_token_s)


def test_a_prompt_that_was_read_before_is_not_read_again() -> None:
    head = (("system", 1000),)
    world = play([one("a", heads=head), one("b", at_s=5.0, heads=head)], small(ENGINE, can_pin=False))
    assert world.programs["b"].calls["c"].cached_tokens == 1000
    uncached = play(
        [one("a", heads=head), one("b", at_s=5.0, heads=head)], small(ENGINE, can_pin=False, shares_prefixes=False)
    )
    assert uncached.programs["b"].calls["c"].cached_tokens == 0


def test_an_answer_is_cached_behind_its_prompt_for_the_same_calls_next_output() -> None:
    world = play([one()], ENGINE)
    assert world.engine.kv.used_tokens == 150
    world.engine.kv.validate()


def test_memory_that_runs_out_takes_from_the_youngest_which_is_computed_again() -> None:
    engine = small(ENGINE, kv_tokens=400)
    calls = [one(f"p{i}", prompt=80, output=90, max_tokens=20) for i in range(4)]
    world = play(calls, engine)
    assert world.engine.totals.preemptions
    assert world.programs["p0"].completion_s < world.programs["p3"].completion_s
    world.engine.kv.validate()


def test_a_prompt_that_fits_by_no_means_fails_as_the_calls_own_fault() -> None:
    world = World(Setup(SchedulerSettings(), small(ENGINE, kv_tokens=50)))
    world.add(one())
    world.run()
    failure = world.programs["p"].failure
    assert failure is not None
    assert failure.type == "context_overflow"


def test_a_cancelled_call_frees_the_engine() -> None:
    from parrot_server.core.events import Cancelled

    world = World(Setup(SchedulerSettings(), ENGINE))
    world.add(one(output=10_000))
    world.simulation.at(1.0, lambda: world.simulation.post(Cancelled("p")))
    world.run()
    assert world.programs["p"].ended_s == 1.0
    assert world.simulation.now_s < 1.1
    assert world.simulation.scheduler.engines()[0].running == 0


def test_machines_have_names_and_models_that_do_not_fit_are_refused() -> None:
    assert engine_named("h100").kv_tokens == 476_837
    assert engine_named("h100-70b").kv_tokens < engine_named("4xh100-70b").kv_tokens
    assert engine_named("H200-13b").cost.step_s == pytest.approx(26e9 / 4.8e12)
    for wrong in ("h300", "h100-8b", "1xh100-70b", "0xh100", ""):
        with pytest.raises(SetupError):
            engine_named(wrong)


def test_tpot_follows_the_tokens_that_are_resident() -> None:
    few = play([one(output=200)], replace(SLOTS, cost=COSTLY)).programs["p"].calls["c"]
    many = play([one(prompt=4000, output=200)], replace(SLOTS, cost=COSTLY)).programs["p"].calls["c"]
    assert (many.ended_s - many.first_token_s) / 199 > 3 * (few.ended_s - few.first_token_s) / 199
