"""An engine that is arithmetic: prefill at FLOP/s, decode at the bytes of weights and resident KV that each step reads, KV that is bounded.

It works in iterations, as real engines do: a prompt (or a chunk of one), or a step of the whole batch. Orders are obeyed between
iterations. Steps between which nothing can change are done in one leap (`batch.py`), so a long answer costs no more than a short one.

Serial prefill stalls the batch while a prompt is read. Chunked prefill reads `chunk_tokens` beside each step of the batch, and a step then
lasts as long as the slower of the two: they want different things of the machine.

Source: the roofline as in `core.cost`; iterations as in Orca (OSDI'22); chunks beside decodes as in Sarathi-Serve (OSDI'24);
recomputing the youngest when memory runs out as in vLLM (SOSP'23).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

from parrot_server.core import events as ev
from parrot_server.core.model import EngineSpec, StepKey, Tier, Usage, Value
from parrot_server.core.prefix import chain_id
from parrot_server.errors import Fault
from parrot_server.sim.attempt import Answer, Attempt, CallRecord, EngineTotals, Iteration
from parrot_server.sim.batch import Batch
from parrot_server.sim.kv import KvMemory
from parrot_server.sim.simulation import EngineAction, Simulation


class RooflineEngine:
    """A simulated engine.

    Args:
        simulation: in whose time it lives.
        spec: what it is; its `cost` is what its work truly costs.
        answer: what the model will write for a step.
        ended: told of each call that has its answer.
        chunk_tokens: how much of a prompt is read beside each step; None: prompts are read whole, and the batch waits.
        progress_s: how often it tells how far its calls are; infinite: never.
    """

    def __init__(
        self,
        simulation: Simulation,
        spec: EngineSpec,
        answer: Callable[[StepKey], Answer],
        ended: Callable[[CallRecord], None],
        chunk_tokens: int | None = None,
        progress_s: float = 0.25,
    ) -> None:
        self.spec = spec
        self.totals = EngineTotals()
        self.kv = KvMemory(spec.kv_tokens, spec.shares_prefixes)
        self._simulation = simulation
        self._cost = spec.cost
        self._answer = answer
        self._ended = ended
        self._chunk_tokens = chunk_tokens
        self._progress_s = progress_s
        self._calls: dict[tuple[StepKey, int], Attempt] = {}
        self._queue: list[tuple[int, int, Attempt]] = []  # prompts to be read
        self._orders: list[ev.Pause | ev.Resume | ev.Abort] = []
        self._batch = Batch(spec.cost)
        self._fresh: list[Attempt] = []  # joined since the last step
        self._now: Iteration | None = None
        self._plan = 0  # tells the end that is awaited from earlier plans
        self._kicked = False
        self._answered = False
        self._told_s = 0.0
        self._seq = 0

    # ---- orders

    def perform(self, action: EngineAction) -> None:
        """Take an order. It is obeyed when the present step ends."""
        match action:
            case ev.Dispatch():
                self._take(action)
            case ev.Keep():
                self._keep(action)
            case _:
                self._orders.append(action)
        self._interrupt()

    def _take(self, action: ev.Dispatch) -> None:
        tokens = sum(piece.tokens for piece in action.prompt.pieces)
        record = CallRecord(action.key, self._simulation.now_s, prompt_tokens=tokens)
        answer, key = self._answer(action.key), action.key
        call = Attempt(key, action.attempt, action.prompt, tokens, self._next(), answer, record)
        call.grant_tokens = action.grant_tokens
        self._calls[action.key, action.attempt] = call
        heapq.heappush(self._queue, (-action.priority, call.seq, call))

    def _keep(self, action: ev.Keep) -> None:
        prefix = action.prefix
        if action.tier is Tier.HOST:
            assert action.prompt is not None, f"{prefix} is to be moved, and nobody says what it is"
            tokens = self.kv.offload(prefix, action.prompt.prefixes)
            moved = ev.KvChanged(prefix, self.spec.id, Tier.HOST, tokens)
            there_s = self._simulation.now_s + tokens * self._cost.offload_token_s
            self._simulation.at(there_s, lambda: self._simulation.post(moved))
        elif action.prompt is None:
            self.kv.unpin(prefix)
        elif not self.kv.is_pinned(prefix):
            tokens = sum(piece.tokens for piece in action.prompt.pieces)
            nobody = StepKey("", "")
            record = CallRecord(nobody, self._simulation.now_s, prompt_tokens=tokens)
            call = Attempt(nobody, 0, action.prompt, tokens, self._next(), Answer("", 0), record, pin=prefix)
            heapq.heappush(self._queue, (-2, call.seq, call))

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    def _interrupt(self) -> None:
        """Something came: begin, or end the present leap at the next step's end."""
        if self._now is None:
            if not self._kicked:
                self._kicked = True
                self._simulation.soon(self._kick)
        elif self._now.steps > 1:
            steps = max(1, self._steps_until(self._simulation.now_s - self._now.start_s))
            if steps < self._now.steps:
                now = self._now
                self._start(Iteration(now.start_s, steps, now.decodes, now.reads, now.chunk_tokens))

    def _kick(self) -> None:
        self._kicked = False
        if self._now is None:
            self._obey()
            self._begin()

    def _obey(self) -> None:
        orders, self._orders = self._orders, []
        for order in orders:
            call = self._calls.get((order.key, order.attempt))
            match order:
                case ev.Abort(key, attempt):
                    if call:
                        self._batch.remove(call)
                        self._drop(call)
                    self._simulation.post(ev.Aborted(key, attempt))
                case ev.Pause() if call and call in self._batch:
                    self._batch.remove(call)
                    self._paused(call)
                case ev.Pause() if call and not call.paused:
                    self._paused(call)
                case ev.Resume() if call:
                    call.grant_tokens = order.grant_tokens
                    if call.paused:
                        call.paused = False
                        self._join(call)

    # ---- iterations

    def _begin(self) -> None:
        """Start what comes next: a prompt if there is room for one, else the batch."""
        call = self._head()
        while call and not (call.left_tokens or call.delay_s):
            self._read(call)
            call = self._head()
        decodes = (call is None or self._chunk_tokens is not None) and self._room_for_step()
        if call is not None and call.left_tokens is not None:
            chunk = min(call.left_tokens, self._chunk_tokens or call.left_tokens)
            steps = 1 if decodes or call.delay_s else call.left_tokens // chunk
            self._start(Iteration(self._simulation.now_s, steps, decodes, call, chunk))
        elif decodes:
            self._start(Iteration(self._simulation.now_s, self._leap(), decodes))
        else:
            self._now = None

    def _leap(self) -> int:
        """How many steps the batch can take before anything changes of itself."""
        steps = min(self._batch.steps_to_stop(), max(1, self.kv.free_tokens // len(self._batch)))
        if math.isfinite(self._progress_s):
            next_s = self._told_s + self._progress_s - self._simulation.now_s
            steps = min(steps, max(1, self._batch.steps_until(next_s)))
        return steps

    def _start(self, iteration: Iteration) -> None:
        self._now = iteration
        self._plan += 1
        plan = self._plan
        if iteration.decodes and self._fresh:
            first_s = iteration.start_s + self._duration_s(iteration, 1)
            for call in self._fresh:
                if call in self._batch:
                    call.record.first_token_s = first_s
            self._fresh.clear()
        end_s = iteration.start_s + self._duration_s(iteration, iteration.steps)
        self._simulation.at(max(end_s, self._simulation.now_s), lambda: self._end(plan))

    def _duration_s(self, iteration: Iteration, steps: int) -> float:
        reading_s = steps * iteration.chunk_tokens * self._cost.prefill_token_s
        if iteration.reads:
            reading_s += iteration.reads.delay_s
        if not iteration.decodes:
            return reading_s
        return max(reading_s, self._batch.duration_s(steps))

    def _steps_until(self, time_s: float) -> int:
        assert self._now is not None
        if self._now.decodes:
            return self._batch.steps_until(time_s)
        return math.ceil(time_s / self._duration_s(self._now, 1))

    def _end(self, plan: int) -> None:
        """The present iteration is over."""
        now = self._now
        if plan != self._plan or now is None:
            return
        if now.decodes:
            self._advance(now.steps)
        if now.reads:
            now.reads.delay_s = 0.0
            now.reads.left_tokens = (now.reads.left_tokens or 0) - now.steps * now.chunk_tokens
            self.totals.computed_tokens += now.steps * now.chunk_tokens
        if self._simulation.now_s - self._told_s >= self._progress_s:
            self._tell()
        self._now = None
        if self._answered:  # what comes of it counts for the next iteration
            self._answered = False
            self._interrupt()
        else:
            self._obey()
            self._begin()

    # ---- prompts

    def _head(self) -> Attempt | None:
        """The call whose prompt is read next, its memory held; None: there is none, or no room for it yet."""
        while self._queue:
            call = self._queue[0][2]
            if call.gone or call.paused:
                heapq.heappop(self._queue)
            elif call.left_tokens is not None or self._admit(call):
                return call
            elif self._batch:
                return None
            elif not self._free_memory(call):
                self._refuse(call)
        return None

    def _admit(self, call: Attempt) -> bool:
        """Hold a call's prompt in memory, if there is room."""
        names = self.kv.names(call.prompt.prefixes, str(call.seq))
        held = self.kv.admit(names, call.prompt.pieces, call.done_tokens)
        if held is None:
            return False
        on_device, on_host = held
        call.names = names
        call.delay_s = on_host * self._cost.offload_token_s
        call.left_tokens = 0 if call.answer.prefilled else call.prompt_tokens + call.done_tokens - on_device - on_host
        if math.isnan(call.record.started_s):
            call.record.started_s = self._simulation.now_s
            call.record.cached_tokens = on_device + on_host
            self.totals.prompt_tokens += call.prompt_tokens
            if call.pin is None:
                self._simulation.post(ev.Started(call.key, call.attempt))
        return True

    def _read(self, call: Attempt) -> None:
        """A call's prompt is in memory."""
        heapq.heappop(self._queue)
        if call.pin is not None:
            self.kv.pin(call.pin, call.names)
            self._simulation.post(ev.Warmed(call.pin, self.spec.id, call.prompt_tokens))
            return
        record = call.record
        if math.isnan(record.prefilled_s):
            record.prefilled_s = self._simulation.now_s
            prefilled = ev.Prefilled(call.key, call.attempt, call.prompt_tokens, record.cached_tokens)
            self._simulation.post(prefilled)
        self._join(call)

    def _refuse(self, call: Attempt) -> None:
        """It fits by no means."""
        message = f"the prompt has {call.prompt_tokens} tokens; {self.spec.id} has room for {self.spec.kv_tokens}"
        call.gone = True
        if call.pin is not None:
            self._simulation.post(ev.WarmFailed(call.pin, self.spec.id, message))
        else:
            self._drop(call)
            self._simulation.post(ev.Failed(call.key, call.attempt, Fault.CALL, "context_overflow", message))

    # ---- the batch

    def _join(self, call: Attempt) -> None:
        """A call begins, or goes on, to decode; first its prompt is read, if it was paused before that or lost its memory since."""
        if call.left_tokens != 0:
            heapq.heappush(self._queue, (0, call.seq, call))
            return
        if call.done_tokens == 0:
            self._fresh.append(call)
        self._batch.add(call)

    def _paused(self, call: Attempt) -> None:
        call.paused = True
        self._simulation.post(ev.Paused(call.key, call.attempt, call.done_tokens))

    def _advance(self, steps: int) -> None:
        """The batch has taken so many steps; calls that are through leave it."""
        written = steps * len(self._batch)
        self._batch.advance(steps)
        self.kv.used_tokens += written
        self.totals.output_tokens += written
        while call := self._batch.stopped():
            self._answered = True
            if call.done_tokens < call.answer.tokens:
                self._paused(call)
            else:
                self._finish(call)

    def _finish(self, call: Attempt) -> None:
        record, answer = call.record, call.answer
        self.kv.keep_output(chain_id(call.prompt.prefixes[-1], "value", answer.text), call.done_tokens)
        call.done_tokens = 0
        self._drop(call)
        record.output_tokens = answer.tokens
        record.ended_s = self._simulation.now_s
        self._ended(record)
        usage = Usage(call.prompt_tokens, record.cached_tokens, answer.tokens)
        value = Value(answer.text, answer.tokens)
        self._simulation.post(ev.Finished(call.key, call.attempt, value, usage))

    def _drop(self, call: Attempt) -> None:
        """A call is no more; its memory is free."""
        call.gone = True
        del self._calls[call.key, call.attempt]
        self._release(call)

    def _release(self, call: Attempt) -> None:
        if call.left_tokens is not None:
            self.kv.used_tokens -= call.done_tokens
            self.kv.let_go(call.names)
            call.left_tokens = None

    def _tell(self) -> None:
        """Say how far the running calls are."""
        self._told_s = self._simulation.now_s
        if self._batch:
            tokens = tuple((call.key, call.attempt, self._batch.written_tokens(call)) for call in self._batch)
            self._simulation.post(ev.Progress(self.spec.id, tokens))

    # ---- memory

    def _room_for_step(self) -> bool:
        """Make room for one token a sequence; where there is none, the youngest gives way and is computed again later."""
        while self._batch:
            if self.kv.make_room(len(self._batch)):
                return True
            youngest = max(self._batch, key=lambda call: call.seq)
            if not self._free_memory(youngest if len(self._batch) == 1 else None):
                self._batch.remove(youngest)
                self._refuse(youngest)
        return False

    def _free_memory(self, spared: Attempt | None) -> bool:
        """Take memory from the youngest call that is not spared, else from the newest pin. False: there is none to take."""
        holders = (call for call in self._calls.values() if call.left_tokens is not None and call is not spared)
        youngest = max(holders, key=lambda call: call.seq, default=None)
        if youngest is not None:
            decoded = youngest in self._batch
            self._batch.remove(youngest)
            self._release(youngest)
            self.totals.preemptions += 1
            if decoded:
                heapq.heappush(self._queue, (0, youngest.seq, youngest))
            return True
        pin = self.kv.newest_pin
        if pin is not None:
            self.kv.unpin(pin)
            self._simulation.post(ev.KvChanged(pin, self.spec.id, Tier.NONE, 0))
        return pin is not None
