"""A fault of our own: logged under an id that the user is given, without any text of values, prompts or exceptions."""

from __future__ import annotations

import logging
import secrets
import traceback

log = logging.getLogger("parrot")


def record_incident(error: BaseException, doing: str) -> str:
    """Log an error that nobody expected, by its type and where it arose, and return its id.

    An exception's own text is left out: it may hold what a user sent.

    Args:
        error: what was raised.
        doing: what the server was at, in words that hold ids at the most.
    """
    incident = secrets.token_hex(4)
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    places = " < ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in reversed(frames))
    log.error("incident %s while %s: %s at %s", incident, doing, type(error).__name__, places)
    return incident
