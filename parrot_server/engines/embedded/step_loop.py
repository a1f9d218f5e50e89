"""What is computed in each step: running calls decode, prompts go in by chunks beside them, waiting calls join between steps.

A call waits, runs, or is paused. The one who sent it decides what is paused and what goes on; the loop itself pauses a call
only when there is no room for its next token, and then the least urgent one first.

Source: Yu et al., "Orca" (2022), section 3.1 (calls join and leave between steps); Agrawal et al., "Sarathi-Serve" (2024),
section 4 (prompts in chunks that share a step with decodes).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from heapq import merge
from itertools import count

import numpy as np

from parrot_server.core.model import Usage
from parrot_server.engines.base import Done
from parrot_server.engines.embedded.kv_cache import KvCache
from parrot_server.engines.embedded.messages import Failure, Report
from parrot_server.engines.embedded.paged_model import PagedModel, Row, row_of
from parrot_server.engines.embedded.prefix_tree import Node
from parrot_server.engines.embedded.sampling import Floats, choose
from parrot_server.engines.embedded.sequence import Generation, Sequence
from parrot_server.engines.embedded.settings import BLOCK_TOKENS, Settings
from parrot_server.errors import EngineError

_LEAST_CHUNK_TOKENS = 16  # of a prompt; fewer are not worth a place in a step

_BlockKey = tuple[str, int, bytes]
"""What is computed: salt, the block before, and the tokens."""


class StepLoop:
    """Runs the calls of one model.

    Args:
        model: computes.
        cache: seats the calls.
        settings: chunk sizes and the bound of the batch.
    """

    def __init__(self, model: PagedModel, cache: KvCache, settings: Settings) -> None:
        self._model = model
        self._cache = cache
        self._settings = settings
        self._arrivals = count()
        self._waiting: list[Sequence] = []  # in order
        self._running: list[Sequence] = []
        self._paused: dict[str, Sequence] = {}
        self._warmed: dict[str, Callable[[], int]] = {}  # what to do when a warm-up is done, by its rid
        self._reports: dict[str, Report] = {}

    @property
    def running(self) -> int:
        """Calls in the batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Calls that are not in the batch and may be as soon as there is room."""
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether a step has something to do."""
        return bool(self._waiting or self._running)

    # ---- what is asked ---------------------------------------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        """A call has come."""
        sequence.arrival = next(self._arrivals)
        insort(self._waiting, sequence, key=_order)

    def refuse(self, rid: str, error: EngineError) -> None:
        """A call could not be taken."""
        self._reports[rid] = Report(rid, failure=Failure(error.fault, error.type, error.message))

    def kept(self, rid: str, tokens: int) -> None:
        """A prefix is where it was wanted, without any computing."""
        self._reports[rid] = Report(rid, kept=tokens)

    def warm(self, sequence: Sequence, done: Callable[[], int]) -> None:
        """Compute a prefix; `done` is called when it is there, and returns how long it is."""
        self._warmed[sequence.rid] = done
        self.add(sequence)

    def abort(self, rid: str) -> None:
        """Let a call go, if it is there."""
        sequence = self._find(rid)
        if sequence is not None:
            self._remove(sequence)
        self._reports[rid] = Report(rid, let_go=True)

    def pause(self, rid: str) -> None:
        """Take a call out of the batch, or out of the queue; its seat stays."""
        sequence = self._find(rid)
        if sequence is not None and rid not in self._paused and rid not in self._warmed:
            self._stall(sequence)

    def resume(self, rid: str, grant_tokens: int | None) -> None:
        """A paused call may go on; it gets its old place in the queue."""
        sequence = self._find(rid)
        if isinstance(sequence, Generation):
            sequence.grant_tokens = grant_tokens
            if self._paused.pop(rid, None) is not None:
                insort(self._waiting, sequence, key=_order)

    def drain_reports(self) -> list[Report]:
        """What has happened since this was last asked."""
        reports, self._reports = list(self._reports.values()), {}
        return reports

    # ---- one step --------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Compute one batch. Raises RuntimeError when the library fails, after which the process is of no use."""
        planned = self._plan()
        if not planned:
            return
        rows = [self._row(sequence, tokens) for sequence, tokens in planned]
        logits = self._model.step(rows)
        sampled: list[Generation] = []
        for (sequence, tokens), row in zip(planned, rows, strict=True):
            before = sequence.computed
            sequence.computed += tokens
            if tokens > 1 or not sequence.prefilled:
                self._cache.record(sequence, before)
                self._note_prefill(sequence)
            if row.sampled and isinstance(sequence, Generation):
                sampled.append(sequence)
        if sampled:
            self._sample(sampled, logits)

    def _plan(self) -> list[tuple[Sequence, int]]:
        """Who computes how many tokens in this step."""
        planned: list[tuple[Sequence, int]] = []
        for sequence in sorted(self._running, key=_order):
            # An earlier one may just have taken this one's seat.
            if sequence.left == 1 and sequence.seat is not None and self._grow(sequence):
                planned.append((sequence, 1))
        budget = self._settings.idle_chunk_tokens
        if planned:
            budget = max(self._settings.chunk_tokens - len(planned), _LEAST_CHUNK_TOKENS)
        prefilling = sorted([sequence for sequence in self._running if sequence.left > 1], key=_order)
        computing = {self._next_block(sequence): sequence for sequence in prefilling}
        candidates = self._waiting[: self._settings.max_running]
        admitting = True
        for sequence in list(merge(prefilling, candidates, key=_order)):
            if budget < _LEAST_CHUNK_TOKENS:
                break
            if sequence in candidates:
                if not admitting or self._follows(sequence, computing):
                    continue
                admitting = self._admit(sequence)
                if not admitting or sequence.seat is None:  # a warm-up that was there already has left
                    continue
                computing[self._next_block(sequence)] = sequence
            tokens = _chunk(sequence, budget)
            planned.append((sequence, tokens))
            budget -= tokens
        return planned

    def _follows(self, sequence: Sequence, computing: dict[_BlockKey, Sequence]) -> bool:
        """Whether another call is computing the very tokens that this one needs next: then let that one go first."""
        if not computing or sequence.seat is not None or not self._settings.reuse:
            return False
        whole = [node for node in self._cache.match(sequence) if node.tokens == BLOCK_TOKENS]
        leader = computing.get(_block_key(sequence, whole))
        if leader is None:
            return False
        leader.priority = max(leader.priority, sequence.priority)
        return True

    def _next_block(self, sequence: Sequence) -> _BlockKey:
        """The block that a running call computes next."""
        return _block_key(sequence, sequence.seat.path if sequence.seat else [])

    def _admit(self, sequence: Sequence) -> bool:
        """Take a waiting call into the batch; False when there is no room for one."""
        if len(self._running) >= self._settings.max_running:
            return False
        while not self._cache.seat(sequence):
            if not self._displace_for(sequence):
                return False
        self._waiting.remove(sequence)
        self._running.append(sequence)
        if not sequence.taken:
            sequence.taken = True
            sequence.cached_tokens = sequence.computed
            self._report(sequence).taken = True
        self._note_prefill(sequence)
        return True

    def _row(self, sequence: Sequence, tokens: int) -> Row:
        begin, end = sequence.computed, sequence.computed + tokens
        assert sequence.seat is not None
        sampled = end == sequence.length and isinstance(sequence, Generation)
        return row_of(sequence.ids[begin:end], begin, sequence.seat.table, sampled)

    # ---- room ------------------------------------------------------------------------------------------------------

    def _grow(self, sequence: Sequence) -> bool:
        """Room for the next token of a running call; False when it had to be paused itself."""
        while not self._cache.seat(sequence):
            worse = [other for other in self._running if other.seat and _order(other) > _order(sequence)]
            idle = [other for other in [*self._paused.values(), *self._waiting] if other.seat]
            if idle or worse:
                self._unseat(max(idle or worse, key=_order))
            elif len(self._running) > 1 or not self._cache.unpin_newest():
                self._unseat(sequence)
                return False
        return True

    def _displace_for(self, sequence: Sequence) -> bool:
        """Take the seat of a call that is not running and less urgent; of any, and of pins, when nothing runs at all."""
        idle = [other for other in [*self._paused.values(), *self._waiting] if other.seat and other is not sequence]
        if self._running:
            idle = [other for other in idle if _order(other) > _order(sequence)]
        if idle:
            self._unseat(max(idle, key=_order))
            return True
        return not self._running and self._cache.unpin_newest()

    def _unseat(self, sequence: Sequence) -> None:
        """Take a call's KV away: it goes on later from what is still there then."""
        self._cache.leave(sequence)
        if sequence in self._running:
            if sequence.rid in self._warmed:  # nobody resumes a warm-up
                self._running.remove(sequence)
                insort(self._waiting, sequence, key=_order)
            else:
                self._stall(sequence)

    def _stall(self, sequence: Sequence) -> None:
        self._forget(sequence)
        self._paused[sequence.rid] = sequence
        report = self._report(sequence)
        report.stalled = True
        report.output_tokens = sequence.length - sequence.prompt_tokens

    # ---- what comes of it ------------------------------------------------------------------------------------------

    def _sample(self, sequences: list[Generation], logits: Floats) -> None:
        for sequence, row in zip(sequences, logits, strict=True):
            if sequence.matcher is not None:
                try:
                    sequence.matcher.forbid(row)
                except EngineError as error:
                    self._fail(sequence, error)
        draws = [sequence.sampling.temperature > 0 for sequence in sequences]
        tokens = choose(
            logits,
            np.array([sequence.sampling.temperature for sequence in sequences], np.float32),
            np.array([sequence.sampling.top_p for sequence in sequences], np.float32),
            np.array([s.random.random() if drawn else 0.0 for s, drawn in zip(sequences, draws, strict=True)]),
        )
        for sequence, token in zip(sequences, tokens.tolist(), strict=True):
            if sequence.finish is None:
                try:
                    self._take(sequence, token)
                except EngineError as error:
                    self._fail(sequence, error)

    def _fail(self, sequence: Generation, error: EngineError) -> None:
        """End a call by a failure that is its own."""
        sequence.finish = "failed"
        self._remove(sequence)
        self._report(sequence).failure = Failure(error.fault, error.type, error.message)

    def _take(self, sequence: Generation, token: int) -> None:
        text = sequence.append(token)
        report = self._report(sequence)
        report.text += text
        report.output_tokens = sequence.output_tokens
        if sequence.finish is not None:
            usage = Usage(sequence.prompt_tokens, sequence.cached_tokens, sequence.output_tokens)
            report.done = Done("stop" if sequence.finish == "stop" else "length", usage, sequence.stop)
            self._remove(sequence)
        elif sequence.grant_tokens is not None and sequence.grant_tokens <= 0:
            self._stall(sequence)

    def _note_prefill(self, sequence: Sequence) -> None:
        if sequence.prefilled or sequence.computed < sequence.prompt_tokens:
            return
        sequence.prefilled = True
        if (done := self._warmed.get(sequence.rid)) is not None:
            self._report(sequence).kept = done()
            self._remove(sequence)
        else:
            self._report(sequence).prefill = (sequence.prompt_tokens, sequence.cached_tokens)

    def _report(self, sequence: Sequence) -> Report:
        report = self._reports.get(sequence.rid)
        if report is None:
            report = self._reports[sequence.rid] = Report(sequence.rid)
        return report

    # ---- where a call is -------------------------------------------------------------------------------------------

    def _find(self, rid: str) -> Sequence | None:
        if (sequence := self._paused.get(rid)) is not None:
            return sequence
        return next((sequence for sequence in [*self._running, *self._waiting] if sequence.rid == rid), None)

    def _forget(self, sequence: Sequence) -> None:
        if sequence in self._running:
            self._running.remove(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)
        self._paused.pop(sequence.rid, None)

    def _remove(self, sequence: Sequence) -> None:
        self._forget(sequence)
        self._warmed.pop(sequence.rid, None)
        self._cache.leave(sequence)


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order


def _block_key(sequence: Sequence, whole: list[Node]) -> _BlockKey:
    """The block of tokens that comes after these nodes of whole blocks."""
    begin = len(whole) * BLOCK_TOKENS
    before = whole[-1].block if whole else -1
    return (sequence.salt, before, sequence.ids[begin : min(begin + BLOCK_TOKENS, sequence.length)].tobytes())


def _chunk(sequence: Sequence, budget: int) -> int:
    """How many tokens of a prompt to compute: all that fit, but never leaving a single one for later.

    A step of one token uses another kernel than one of several; prompts are always computed with the latter.
    """
    return budget - 1 if sequence.left == budget + 1 else min(sequence.left, budget)
