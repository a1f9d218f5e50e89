"""The running batch of the simulated engine. While nothing comes or goes, many of its steps are done at once.

Each step reads all resident tokens, and adds one for each sequence; so the time of n steps is an arithmetic series of `core.cost.step_s`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

from parrot_server.core.cost import step_s
from parrot_server.core.model import CostModel
from parrot_server.sim.attempt import Attempt


def steps_s(cost: CostModel, sequences: int, resident_tokens: float, steps: int) -> float:
    """Seconds of so many decode steps of a batch that begins with so many resident tokens."""
    growth_s = cost.resident_token_s * sequences
    return steps * step_s(cost, sequences, resident_tokens) + growth_s * steps * (steps - 1) / 2


def steps_until(cost: CostModel, sequences: int, resident_tokens: float, time_s: float) -> int:
    """How many decode steps end at or after a time: the least n with `steps_s(n) >= time_s`."""
    if time_s <= 0:
        return 0
    growth_s = cost.resident_token_s * sequences
    half_s = step_s(cost, sequences, resident_tokens) - growth_s / 2
    steps = math.ceil(2 * time_s / (half_s + math.sqrt(half_s * half_s + 2 * growth_s * time_s)))
    while steps > 1 and steps_s(cost, sequences, resident_tokens, steps - 1) >= time_s:
        steps -= 1
    while steps_s(cost, sequences, resident_tokens, steps) < time_s:
        steps += 1
    return steps


class Batch:
    """The calls that decode together. `steps` counts all steps that were ever taken."""

    def __init__(self, cost: CostModel) -> None:
        self.resident_tokens = 0
        self.steps = 0
        self._cost = cost
        self._calls: dict[Attempt, None] = {}
        self._stops: list[tuple[int, int, Attempt]] = []

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[Attempt]:
        return iter(self._calls)

    def __contains__(self, call: Attempt) -> bool:
        return call in self._calls

    def add(self, call: Attempt) -> None:
        """A call joins: until its answer is whole, or its grant is spent."""
        left = call.answer.tokens - call.done_tokens
        call.joined = self.steps
        call.stop = self.steps + (left if call.grant_tokens is None else min(left, call.grant_tokens))
        self._calls[call] = None
        self.resident_tokens += call.prompt_tokens + call.done_tokens
        heapq.heappush(self._stops, (call.stop, call.seq, call))

    def remove(self, call: Attempt) -> None:
        """A call leaves, with what it has written."""
        if call in self._calls:
            del self._calls[call]
            call.done_tokens += self.steps - call.joined
            call.stop = -1
            self.resident_tokens -= call.prompt_tokens + call.done_tokens

    def written_tokens(self, call: Attempt) -> int:
        """How far a call of the batch is."""
        return call.done_tokens + self.steps - call.joined

    def advance(self, steps: int) -> None:
        """Take so many steps."""
        self.steps += steps
        self.resident_tokens += steps * len(self._calls)

    def stopped(self) -> Attempt | None:
        """Take out a call that is through, if there is one."""
        while self._stops and self._stops[0][0] <= self.steps:
            stop, _, call = heapq.heappop(self._stops)
            if call.stop == stop:
                self.remove(call)
                return call
        return None

    def steps_to_stop(self) -> int:
        """How many steps until a call is through."""
        while self._stops[0][2].stop != self._stops[0][0]:
            heapq.heappop(self._stops)
        return self._stops[0][0] - self.steps

    def duration_s(self, steps: int) -> float:
        """Seconds of so many steps."""
        return steps_s(self._cost, len(self._calls), self.resident_tokens, steps)

    def steps_until(self, time_s: float) -> int:
        """How many steps until one ends at or after a time from now."""
        return steps_until(self._cost, len(self._calls), self.resident_tokens, time_s)
