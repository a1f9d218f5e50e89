"""One attempt in the simulated engine: what the model will write, what it holds and where it stands, and the record that stays of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from parrot_server.core.model import Prompt, StepKey


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model will write: so many tokens, and a text that stands for them. `prefilled`: its prompt costs nothing to read."""

    text: str
    tokens: int
    prefilled: bool = False


@dataclass(slots=True)
class CallRecord:
    """What became of one attempt, in seconds and tokens."""

    key: StepKey
    sent_s: float
    ready_s: float = math.nan  # when all that it waits for was there
    started_s: float = math.nan
    prefilled_s: float = math.nan
    first_token_s: float = math.nan
    ended_s: float = math.nan
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt in the engine, or a prefix to be warmed (`pin`)."""

    key: StepKey
    attempt: int
    prompt: Prompt
    prompt_tokens: int
    seq: int
    answer: Answer
    record: CallRecord
    pin: str | None = None
    grant_tokens: int | None = None
    names: tuple[str, ...] = ()  # what it holds in memory
    left_tokens: int | None = None  # of its prompt, once it is being read
    delay_s: float = 0.0  # until what it needs is back from the host
    done_tokens: int = 0  # written, up to when it last joined or left the batch
    joined: int = 0  # the batch's count of steps when it joined
    stop: int = 0  # the count at which it leaves; tells its present stay from earlier ones
    paused: bool = False
    gone: bool = False


@dataclass(slots=True)
class Iteration:
    """What the engine does now: `steps` equal steps, each with `chunk_tokens` of one prompt, and with the batch if `decodes`."""

    start_s: float
    steps: int
    decodes: bool
    reads: Attempt | None = None
    chunk_tokens: int = 0


@dataclass(slots=True)
class EngineTotals:
    """Sums over an engine's life."""

    prompt_tokens: int = 0
    computed_tokens: int = 0  # of prompts, warm prefixes included
    output_tokens: int = 0
    preemptions: int = 0
