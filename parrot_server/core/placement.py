"""Which engine a step should go to, and what must happen there first.

The engine that holds the longest prefix is the cheapest unless its queue costs more than prefilling again. Of several calls that share a
prefix which an engine does not hold, one goes first (a warm call where the engine can pin, else a sibling) and the others wait for it.

Source: prefix affinity with load, Preble (arXiv:2407.00023, section 3) and Parrot (OSDI'24, section 5.3); one sibling first: SGLang's
prefix cache counts only what is computed already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from parrot_server.core.cost import prefill_s, step_s
from parrot_server.core.fleet import Engine, PinState, Run
from parrot_server.core.model import Objective, Prompt
from parrot_server.core.predict import Predictor
from parrot_server.core.prefix import PrefixTable
from parrot_server.core.program import Step
from parrot_server.core.settings import SchedulerSettings


@dataclass(frozen=True, slots=True)
class Plan:
    """What sending a step to an engine would mean. `shared` is the prefix that others will use too, with its tokens."""

    engine: Engine
    prompt_tokens: float
    held_tokens: float
    need_tokens: float
    expected_s: float
    shared: tuple[str, int] | None
    move: Literal["send", "lead", "warm", "wait"]


def held_tokens(engine: Engine, prompt: Prompt) -> float:
    """How much of a prompt's beginning an engine holds, in tokens."""
    total, held = 0.0, 0.0
    for prefix, piece in zip(prompt.prefixes, prompt.pieces, strict=True):
        total += piece.tokens
        if engine.holds(prefix):
            held = total
    return held if engine.spec.shares_prefixes or engine.spec.can_pin else 0.0


def plan(step: Step, engine: Engine, predictor: Predictor, prefixes: PrefixTable, settings: SchedulerSettings) -> Plan:
    """Work out what sending a step to an engine would mean."""
    assert step.prompt is not None, f"{step.key} has no prompt"
    prompt_tokens = predictor.prompt_tokens(step)
    held = held_tokens(engine, step.prompt)
    output_tokens = predictor.output_tokens(step)
    shared = prefixes.longest_shared(step.prompt, settings.warm_tokens)
    if shared and not engine.holds(shared[0]):
        soon = shared[0] in engine.pins or shared[0] in engine.coming
        future = max(held, shared[1]) if soon else held
    else:
        future = held
    totals = engine.totals
    running = len(totals.expedited) + len(totals.batch)
    expected_s = prefill_s(engine.cost, prompt_tokens - future + totals.backlog_tokens)
    expected_s += output_tokens * step_s(engine.cost, running + 1, totals.resident_tokens + prompt_tokens)
    need = prompt_tokens - held + output_tokens
    return Plan(engine, prompt_tokens, held, need, expected_s, shared, _move(step, engine, shared, settings))


def _move(
    step: Step, engine: Engine, shared: tuple[str, int] | None, settings: SchedulerSettings
) -> Literal["send", "lead", "warm", "wait"]:
    if shared is None:
        return "send"
    prefix, tokens = shared
    pin = engine.pins.get(prefix)
    if pin is not None:
        return "send" if pin.state is PinState.HELD else "wait"
    if prefix in engine.coming:
        return "wait"
    if engine.spec.can_pin and prefix not in engine.unwarmable:
        pinned = sum(other.tokens for other in engine.pins.values())
        if pinned + tokens <= settings.pinned_share * engine.spec.kv_tokens:
            return "warm"
    if engine.holds(prefix) or not engine.spec.shares_prefixes:
        return "send"
    return "lead"


def is_held_back(step: Step, engine: Engine, better: list[Run], now_s: float, settings: SchedulerSettings) -> bool:
    """Whether a step must wait so that better expedited calls that run keep their time per token.

    A batch step is not held back for ever: after `patience_s` in the queue the bound does not apply to it.
    """
    if step.objective is Objective.EXPEDITE:
        limit = settings.expedited_together
        return limit is not None and len(engine.expedited()) >= limit
    if not better or now_s - step.queued_s >= settings.patience_s:
        return False
    budget_s = engine.corunner_budget_s(better, settings)
    spent_s = sum(engine.corunner_s(run.resident_tokens) for run in engine.batch())
    assert step.prompt is not None, f"{step.key} has no prompt"
    resident = sum(piece.tokens for piece in step.prompt.pieces)
    return spent_s + engine.corunner_s(resident) > budget_s
