"""How long the server waits for engines."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long the runtime waits for an engine, in seconds.

    Args:
        start_s: to come up, its model loaded.
        first_token_s: from dispatch (or resumption) to the first text.
        idle_s: from one text to the next.
        abort_s: to let go of a call; after that it counts as gone.
        poll_s, poll_answer_s: between two questions for its load, and for the answer.
        keep_s: to bring a prefix where it is wanted.
        backoff_s, backoff_max_s: first and longest pause before it is started again.
    """

    start_s: float = 900.0
    first_token_s: float = 300.0
    idle_s: float = 60.0
    abort_s: float = 10.0
    poll_s: float = 1.0
    poll_answer_s: float = 5.0
    keep_s: float = 120.0
    backoff_s: float = 0.5
    backoff_max_s: float = 30.0
