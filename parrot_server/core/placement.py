"""Which engine a step should go to, and what must happen there first.

The engine that holds the longest prefix is the cheapest unless its queue costs more than prefilling again. Of several calls that share a
prefix which an engine does not hold, one goes first (a warm call where the engine can pin, else a sibling) and the others wait for it.

Source: prefix affinity with load, Preble (arXiv:2407.00023, section 3) and Parrot (OSDI'24, section 5.3); one sibling first: SGLang's
prefix cache counts only what is computed already.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from parrot_server.core.cost import prefill_s, step_s
from parrot_server.core.fleet import Engine
from parrot_server.core.model import Objective, Prompt
from parrot_server.core.predict import Predictor
from parrot_server.core.prefix import PrefixTable
from parrot_server.core.program import Step
from parrot_server.core.settings import SchedulerSettings


@dataclass(frozen=True, slots=True)
class Plan:
    """What sending a step to an engine would mean.

    `held_tokens` of its prompt are there already; `need_tokens` is the room that it takes, of which `own_tokens` (of its prompt) and
    `output_tokens` are its alone. `shared` is the prefix that others will use too.
    """

    engine: Engine
    prompt_tokens: int
    held_tokens: int
    own_tokens: int
    output_tokens: int
    need_tokens: int
    expected_s: float
    shared: str | None
    move: Literal["send", "lead", "warm", "wait"]


def held_tokens(engine: Engine, prompt: Prompt) -> int:
    """How much of a prompt's beginning an engine holds, in tokens."""
    for end in range(len(prompt.prefixes), 0, -1):
        if engine.holds(prompt.prefixes[end - 1]):
            return sum(piece.tokens for piece in prompt.pieces[:end])
    return 0


def plan(step: Step, engine: Engine, predictor: Predictor, prefixes: PrefixTable, settings: SchedulerSettings) -> Plan:
    """Work out what sending a step to an engine would mean."""
    prompt = step.prompt
    assert prompt is not None, f"{step.key} has no prompt"
    prompt_tokens = sum(piece.tokens for piece in prompt.pieces)
    # No answer is longer than the context: one that asks for more is refused by its engine, and must not wait for room before.
    longest = max(0, engine.spec.context_tokens - prompt_tokens)
    output_tokens = min(math.ceil(predictor.output_tokens(step)), longest)
    held = held_tokens(engine, prompt)
    shared = prefixes.longest_shared(prompt, settings.warm_tokens)
    future = held
    if shared and (shared in engine.pins or shared in engine.coming):
        future = max(held, sum(piece.tokens for piece in prompt.head(shared).pieces))
    totals = engine.totals
    running = sum(len(part.runs) for part in totals.decoding.values())
    expected_s = prefill_s(engine.cost, prompt_tokens - future + totals.backlog_tokens)
    expected_s += output_tokens * step_s(engine.cost, running + 1, totals.resident_tokens + prompt_tokens)
    own = 0 if engine.spec.shares_prefixes else prompt_tokens - held
    added = engine.in_use.missing_tokens(prompt) if engine.spec.shares_prefixes else own
    return Plan(
        engine,
        prompt_tokens,
        held,
        own,
        output_tokens,
        added + output_tokens,
        expected_s,
        shared,
        _move(prompt, engine, shared, prefixes, settings),
    )


def _move(
    prompt: Prompt, engine: Engine, shared: str | None, prefixes: PrefixTable, settings: SchedulerSettings
) -> Literal["send", "lead", "warm", "wait"]:
    if shared is None:
        return "send"
    if shared in engine.coming and not engine.holds(shared):
        return "wait"
    if shared in engine.pins:
        return "send"
    shares = engine.spec.shares_prefixes
    if not (shares and prefixes.ready(shared) <= 1) and engine.can_keep(prompt.head(shared), settings):
        return "warm"
    return "lead" if shares and not engine.holds(shared) else "send"


def would_slow_down(step: Step, engine: Engine, now_s: float, settings: SchedulerSettings) -> bool:
    """Whether a step would take more than is left to it beside more urgent calls that run: of their time per token.

    An expedited one may be one too many of them. A step that has waited for `patience_s` is not asked.
    """
    if step.objective is Objective.EXPEDITE:
        limit = settings.expedited_together
        return limit is not None and len(engine.expedited()) >= limit
    if step.urgency >= engine.most_urgent() or now_s - step.queued_s >= settings.patience_s:
        return False
    assert step.prompt is not None, f"{step.key} has no prompt"
    resident = sum(piece.tokens for piece in step.prompt.pieces)
    return engine.corunners_s() + engine.corunner_s(resident) > engine.corunner_budget_s(settings)
