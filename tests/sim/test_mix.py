"""Order alone, on a server that runs one call at a time."""

from __future__ import annotations

from statistics import fmean

import pytest

from parrot_server.sim.mix import Mix, MixRun, run

# a tenth of the reference mix: 10 chats of 20 units, 2 agents of 800
SMALL = Mix(chats=10, chat_units=20, agents=2, agent_calls=20, agent_units=800, levels=(20,))


def mean(done: MixRun) -> float:
    return fmean(record.completion_s for record in done.world.programs.values())


def test_the_clairvoyant_bounds() -> None:
    chats = sum(20 * n for n in range(1, 11))
    assert mean(run(SMALL, "shortest-first")) == (chats + 200 + 800 + 200 + 1600) / 12
    assert mean(run(SMALL, "longest-first")) == (800 + 1600 + chats + 10 * 1600) / 12


def test_feedback_told_nothing_loses_what_the_agents_get_before_they_are_known() -> None:
    best = mean(run(SMALL, "shortest-first"))
    lost = (10 * 2 * 20 + 20) / 12  # each chat waits for 20 units of both agents, and one agent for those of the other
    assert mean(run(SMALL, "feedback")) == pytest.approx(best + lost)


def test_sharing_by_program_is_processor_sharing() -> None:
    shared = (10 * 20 * 12 + 2 * (20 * 12 + 780 * 2)) / 12
    assert mean(run(SMALL, "program-fair")) == pytest.approx(shared, rel=0.03)


def test_sharing_by_request_pays_a_program_by_its_requests() -> None:
    at_once = Mix(chats=10, chat_units=600, agents=2, agent_calls=200, agent_units=4000, at_once=True, chat_calls=3)
    assert run(at_once, "request-fair").agent_advantage == pytest.approx(200 / 3, rel=0.02)
    assert run(at_once, "program-fair").agent_advantage == pytest.approx(1.0, rel=0.02)


def test_told_nothing_the_full_policy_stays_near_feedback() -> None:
    assert mean(run(SMALL, "parrot")) < mean(run(SMALL, "program-fair"))
    assert mean(run(SMALL, "fcfs")) < mean(run(SMALL, "program-fcfs"))


@pytest.mark.soak
def test_the_accounting_advantage_in_the_reference_mix() -> None:
    assert run(Mix(at_once=True), "request-fair").agent_advantage == pytest.approx(66.7, rel=0.02)
    assert run(Mix(at_once=True), "program-fair").agent_advantage == pytest.approx(1.0, rel=0.02)
