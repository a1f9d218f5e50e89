"""The attempts that are in an engine, and what they come to together: slots, KV, the running batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from parrot_server.core.model import Prompt, Urgency
from parrot_server.core.program import Step


@dataclass(slots=True, eq=False)
class Run:
    """One attempt in an engine.

    `shared` is its prompt where the engine shares prompts' beginnings (what they take is counted together); `own_tokens` is what it
    takes of its prompt by itself, `expected_tokens` what is set aside for its answer.
    """

    step: Step
    attempt: int
    shared: Prompt | None
    own_tokens: int
    expected_tokens: int
    prompt_tokens: int
    cached_tokens: int
    last_s: float  # up to when its service is charged
    leads: str | None = None  # the shared prefix that its siblings wait for
    output_tokens: int = 0
    prefilled: bool = False
    pausing: bool = False
    paused: bool = False
    aborting: bool = False

    @property
    def need_tokens(self) -> int:
        """KV that is set aside for it alone."""
        return self.own_tokens + max(self.expected_tokens, self.output_tokens)

    @property
    def resident_tokens(self) -> int:
        """Tokens that its decode steps read."""
        return self.prompt_tokens + self.output_tokens

    @property
    def decodes(self) -> bool:
        """Whether it takes part in the running batch."""
        return not (self.aborting or self.pausing or self.paused)

    @property
    def backlog_tokens(self) -> int:
        """What is still to be prefilled of it."""
        return 0 if self.prefilled else self.prompt_tokens - self.cached_tokens


_Share = tuple[int, int, bool, int, int, Urgency | None]
_NOTHING: _Share = (0, 0, False, 0, 0, None)


def _share(run: Run) -> _Share:
    """What a run adds to the sums, in their order, and how urgent it is if it takes part in the running batch."""
    if not run.decodes:
        return (not run.paused, run.need_tokens, run.pausing or run.aborting, 0, 0, None)
    return (1, run.need_tokens, False, run.resident_tokens, run.backlog_tokens, run.step.urgency)


@dataclass(slots=True)
class Decoding:
    """The part of the running batch that is of one urgency, and the tokens that are resident for it."""

    runs: dict[Run, None] = field(default_factory=dict)
    resident_tokens: int = 0


def _nobody() -> dict[Urgency, Decoding]:
    return {urgency: Decoding() for urgency in Urgency}


@dataclass(slots=True)
class Totals:
    """Sums over an engine's runs. `leaving`: those that were asked to pause or to go; `decoding`: the running batch."""

    slots: int = 0
    need_tokens: int = 0
    leaving: int = 0
    resident_tokens: int = 0
    backlog_tokens: int = 0
    decoding: dict[Urgency, Decoding] = field(default_factory=_nobody)
    paused: dict[Run, None] = field(default_factory=dict)
    _shares: dict[Run, _Share] = field(default_factory=dict)

    @classmethod
    def of(cls, runs: Iterable[Run]) -> Totals:
        """The sums over these runs."""
        totals = cls()
        for run in runs:
            totals.count(run)
        return totals

    def count(self, run: Run) -> None:
        """Count a run as it is now."""
        share = _share(run)
        before = self._shares.get(run)
        if share != before:
            self._shares[run] = share
            self._replace(run, before or _NOTHING, share)
            self.paused.pop(run, None)
            if run.paused and not run.decodes:
                self.paused[run] = None

    def discount(self, run: Run) -> None:
        """Count a run no more."""
        share = self._shares.pop(run, None)
        if share is not None:
            self._replace(run, share, _NOTHING)
            self.paused.pop(run, None)

    def _replace(self, run: Run, old: _Share, new: _Share) -> None:
        self.slots += new[0] - old[0]
        self.need_tokens += new[1] - old[1]
        self.leaving += new[2] - old[2]
        self.resident_tokens += new[3] - old[3]
        self.backlog_tokens += new[4] - old[4]
        if old[5] is not None:
            del self.decoding[old[5]].runs[run]
            self.decoding[old[5]].resident_tokens -= old[3]
        if new[5] is not None:
            self.decoding[new[5]].runs[run] = None
            self.decoding[new[5]].resident_tokens += new[3]
