"""What is wrong with an answer that an engine calls whole: an output that is bound by a schema or choices never gets a broken value."""

from __future__ import annotations

import json

from parrot_server.core.events import Failed, Finished
from parrot_server.core.program import Step
from parrot_server.errors import Fault


def problem_of(step: Step, event: Finished) -> Failed | None:
    """Why an answer cannot be its step's value; None: it can."""
    sampling, where = step.sampling, f"call {step.call.id!r}"
    if not event.value.text and not sampling.allow_empty:
        message = f"{where}: the engine's answer is empty, which its output {step.output!r} forbids"
        return Failed(event.key, event.attempt, Fault.BUSY, "engine_empty", message)
    if sampling.schema is None and sampling.choices is None:
        return None
    if event.finish == "length":
        message = f"{where}: max_tokens ({sampling.max_tokens}) ended {step.output!r} before its value was whole"
        return Failed(event.key, event.attempt, Fault.CALL, "output_truncated", message)
    wrong = _misfit(event.value.text, sampling.choices)
    if wrong is None:
        return None
    cut = " (a stop string cut it)" if event.stop is not None else ""
    message = f"{where}: {step.output!r} is {wrong}{cut}"
    return Failed(event.key, event.attempt, Fault.CALL, "output_invalid", message)


def _misfit(text: str, choices: tuple[str, ...] | None) -> str | None:
    """What an answer is that is neither one of its choices nor, where a schema binds it, JSON."""
    if choices is not None:
        return None if text in choices else "none of its choices"
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return "not the JSON that its schema wants"
    return None
