"""What engines say of attempts, and what follows: progress is charged, ends are taken, failures are tried again or given up.

An event of an attempt that nobody waits for any more only frees its room.
"""

from __future__ import annotations

import hashlib

from parrot_server.core.answers import problem_of
from parrot_server.core.dispatch import Dispatcher
from parrot_server.core.events import (
    Aborted,
    EngineDown,
    EngineLoad,
    EngineUp,
    Failed,
    Finished,
    KvChanged,
    Paused,
    Prefilled,
    Progress,
    Recovered,
    Started,
    Warmed,
    WarmFailed,
)
from parrot_server.core.fleet import Engine, PinState
from parrot_server.core.interception import Interceptions
from parrot_server.core.keeper import Keeper
from parrot_server.core.lifecycle import Lifecycle
from parrot_server.core.model import ENDED, CallState, Failure, StepKey, Tier, Usage
from parrot_server.core.prefix import chain_id
from parrot_server.core.program import Program, Step
from parrot_server.core.runs import Run
from parrot_server.core.state import State, Timer
from parrot_server.errors import Fault


class Attempts:
    """Handlers of the engines' events. Owns no state of its own."""

    def __init__(
        self, state: State, lifecycle: Lifecycle, dispatcher: Dispatcher, keeper: Keeper, interceptions: Interceptions
    ) -> None:
        self._state = state
        self._lifecycle = lifecycle
        self._dispatcher = dispatcher
        self._keeper = keeper
        self._interceptions = interceptions

    # ---- one attempt

    def started(self, event: Started) -> None:
        """An engine took a call out of its queue."""
        found = self._live(event.key, event.attempt)
        if found and found[1].step.state is CallState.SENT:
            self._start(found[1])

    def _start(self, run: Run) -> None:
        run.last_s = self._state.now_s
        run.step.started_s = self._state.now_s
        self._state.move(run.step, CallState.RUNNING)

    def prefilled(self, event: Prefilled) -> None:
        """A prompt is computed: siblings that wait for its beginning can go, and it needs its pins no more."""
        found = self._live(event.key, event.attempt)
        if not found:
            return
        engine, run = found
        step = run.step
        if step.state is CallState.SENT:
            self._start(run)
        self._charge(run)
        run.own_tokens += event.prompt_tokens - run.prompt_tokens
        run.prompt_tokens, run.cached_tokens, run.prefilled = event.prompt_tokens, event.cached_tokens, True
        step.usage = Usage(event.prompt_tokens, event.cached_tokens)
        assert step.prompt is not None
        engine.saw(step.prompt.prefixes, [piece.tokens for piece in step.prompt.pieces])
        self._keeper.release(step)
        self._interceptions.went_on(step.program)
        self._keeper.lead_ended(engine, run)
        self._keeper.keep_for_others(engine, step)

    def progress(self, event: Progress) -> None:
        """Some running calls have so many tokens now."""
        for key, attempt, output_tokens in event.output_tokens:
            found = self._live(key, attempt)
            if not found:
                continue
            _, run = found
            step = run.step
            if step.state is CallState.SENT:
                self._start(run)
            if step.first_token_s is None and output_tokens:
                step.first_token_s = self._state.now_s
            self._charge(run, output_tokens)
            self._check_budget(step.program, output_tokens)

    def _check_budget(self, program: Program, more_tokens: int) -> None:
        limit = program.budget.total_tokens
        spent = _sum(program.usage, program.wasted)
        used = spent.prompt_tokens + spent.output_tokens
        if limit is not None and used + more_tokens > limit and not program.ended:
            message = f"the program's budget of {limit} tokens is spent"
            self._lifecycle.fail_open(program, Failure("budget_exceeded", message))

    def finished(self, event: Finished) -> None:
        """A call's answer is whole."""
        found = self._state.runs.get((event.key, event.attempt))
        if not found:
            return
        engine, run = found
        step = run.step
        self._charge(run, event.usage.output_tokens)
        self._remove(engine, run)
        engine.succeeded()
        if run.aborting:
            step.program.wasted = _sum(step.program.wasted, event.usage)
            return
        step.usage = event.usage
        if step.state is CallState.SENT:
            step.started_s = self._state.now_s
        if step.first_token_s is None:
            step.first_token_s = self._state.now_s
        problem = problem_of(step, event)
        if problem:
            step.program.wasted = _sum(step.program.wasted, event.usage)
            self._failed_attempt(engine, step, problem)
            return
        self._state.predictor.saw(step, event.usage)
        step.program.usage = _sum(step.program.usage, event.usage)
        self._note_cached(engine, step, event)
        self._lifecycle.end_step(step, CallState.DONE, event.value)
        self._check_budget(step.program, 0)

    def _note_cached(self, engine: Engine, step: Step, event: Finished) -> None:
        """The answer stands behind the prompt in the engine's cache: the call's next step begins with both."""
        if step.prompt is not None and len(step.call.outputs) > step.key.step + 1:
            prefix = chain_id(step.prompt.prefixes[-1], "value", event.value.text)
            engine.saw((*step.prompt.prefixes, prefix), [*(p.tokens for p in step.prompt.pieces), event.value.tokens])

    def failed(self, event: Failed) -> None:
        """An attempt failed: try again where that can help, else give up."""
        found = self._state.runs.get((event.key, event.attempt))
        if not found:
            return
        engine, run = found
        step = run.step
        self._charge(run)
        self._remove(engine, run)
        step.program.wasted = _sum(step.program.wasted, event.usage)
        if event.fault in (Fault.ENGINE, Fault.TIMEOUT):
            until_s = engine.failed(self._state.now_s, self._state.settings)
            if until_s is not None:
                self._state.set_timer(until_s, Timer.BREAKER, engine.spec.id)
        elif event.fault is Fault.CALL:
            engine.succeeded()
        else:
            engine.probing = False  # to be asked for patience says nothing of its health: the next call probes it
        if not run.aborting:
            self._failed_attempt(engine, step, event)

    def _failed_attempt(self, engine: Engine, step: Step, event: Failed) -> None:
        settings = self._state.settings
        step.failures += event.fault in (Fault.ENGINE, Fault.TIMEOUT)
        step.busy_answers += event.fault is Fault.BUSY
        allowed = step.call.attempts or settings.attempts
        spent = step.failures >= allowed or step.busy_answers >= max(allowed, settings.busy_attempts)
        if event.type == "engine_empty":
            spent = step.busy_answers >= allowed
        if event.fault is Fault.CALL or spent:
            retryable = event.fault is not Fault.CALL
            self._lifecycle.end_step(
                step, CallState.FAILED, Failure(event.type, event.message, step.call.id, retryable)
            )
            return
        asked_s = event.retry_after_s
        pause_s = self._backoff_s(step) if asked_s is None else min(asked_s, settings.retry_after_max_s)
        self._dispatcher.retire(step)
        step.rests = True
        self._state.set_timer(self._state.now_s + pause_s, Timer.RETRY, *step.key)

    def _backoff_s(self, step: Step) -> float:
        """Exponential, with a jitter that is a hash of call and attempt, so that a replay waits as long."""
        settings = self._state.settings
        tries = step.failures + step.busy_answers
        longest = min(settings.backoff_max_s, settings.backoff_s * 2 ** (tries - 1))
        digest = hashlib.sha256(f"{step.key}{step.attempt}".encode()).digest()
        return float(longest * (0.5 + int.from_bytes(digest[:4], "big") / 2**33))

    def paused(self, event: Paused) -> None:
        """An engine stopped decoding a call and keeps its KV."""
        found = self._live(event.key, event.attempt)
        if not found or found[1].step.state is CallState.PAUSED:
            return
        _, run = found
        self._charge(run, event.output_tokens)
        run.pausing, run.paused = False, True
        self._state.move(run.step, CallState.PAUSED)
        self._state.enqueue(run.step)

    def aborted(self, event: Aborted) -> None:
        """An engine let a call go."""
        found = self._state.runs.get((event.key, event.attempt))
        if not found:
            return
        engine, run = found
        self._charge(run)
        self._remove(engine, run)
        engine.probing = False
        if not run.aborting:  # nobody asked for it
            failed = Failed(event.key, event.attempt, Fault.ENGINE, "engine_aborted", "the engine let the call go")
            self._failed_attempt(engine, run.step, failed)

    # ---- engines

    def engine_up(self, event: EngineUp) -> None:
        """An engine is there, new or again."""
        known = self._state.engines.get(event.engine.id)
        if known is not None:
            self.engine_down(EngineDown(event.engine.id, "the engine started anew"))
        self._state.engines[event.engine.id] = Engine(event.engine, cost=event.engine.cost)

    def engine_down(self, event: EngineDown) -> None:
        """An engine is gone: what ran in it is tried again, unless it seems to be what kills engines."""
        engine = self._state.engines.get(event.engine)
        if engine is None:
            return
        lost = self._emptied(engine)
        suspects = [run for run in lost if not run.prefilled] or lost
        for run in lost:
            if run.aborting or run.step.state in ENDED:  # ended just now, by what the loss of another led to
                continue
            run.step.deaths += run in suspects
            self._lost(run.step)

    def recovered(self, event: Recovered) -> None:
        """The server started again: nothing is in an engine any more, which is no call's fault, nor an engine's."""
        for engine in self._state.engines.values():
            for run in self._emptied(engine):
                if not run.aborting:
                    self._dispatcher.requeue(run.step)

    def _emptied(self, engine: Engine) -> list[Run]:
        """Take all runs from an engine that has lost them."""
        lost = list(engine.runs.values())
        for run in lost:
            self._charge(run)
            self._remove(engine, run)
        self._keeper.forget_engine(engine)
        return lost

    def _lost(self, step: Step) -> None:
        step.failures += 1
        if step.deaths >= 2:
            message = f"call {step.call.id!r}: engines died twice while it ran"
            self._lifecycle.end_step(step, CallState.FAILED, Failure("poison", message, step.call.id))
        elif step.failures >= (step.call.attempts or self._state.settings.attempts):
            message = f"call {step.call.id!r}: its engine went away {step.failures} times"
            self._lifecycle.end_step(
                step, CallState.FAILED, Failure("engine_gone", message, step.call.id, retryable=True)
            )
        else:
            self._dispatcher.requeue(step)

    def engine_load(self, event: EngineLoad) -> None:
        """What an engine says of itself; what is beyond our own calls is others'."""
        engine = self._state.engines.get(event.engine)
        if engine is None:
            return
        engine.foreign_running = max(0, event.running - engine.totals.slots)
        own_tokens = engine.totals.need_tokens + engine.in_use.tokens
        engine.foreign_tokens = max(0, event.used_tokens - own_tokens) if engine.foreign_running else 0
        engine.cost = event.cost or engine.cost

    # ---- prefixes

    def warmed(self, event: Warmed) -> None:
        """A prefix is where it was wanted."""
        engine = self._state.engines.get(event.engine)
        pin = engine.pins.get(event.prefix) if engine else None
        if engine and pin:
            pin.state = PinState.HELD
            self._keeper.held(engine, event.prefix)

    def warm_failed(self, event: WarmFailed) -> None:
        """A prefix could not be kept: calls do without."""
        engine = self._state.engines.get(event.engine)
        if engine and engine.drop_pin(event.prefix):
            engine.cannot_keep(event.prefix)
            self._keeper.arrived(engine, event.prefix)

    def kv_changed(self, event: KvChanged) -> None:
        """An engine has moved a prefix out as it was asked to, or evicted one by itself."""
        engine = self._state.engines.get(event.engine)
        if engine and event.tier is Tier.HOST:
            self._interceptions.moved_out(engine, event.prefix, event.tokens)
        elif engine and event.tier is Tier.NONE:
            engine.forget(event.prefix)
            if engine.drop_pin(event.prefix):
                self._keeper.arrived(engine, event.prefix)
            elif event.prefix in engine.held:
                engine.let_go(event.prefix)

    # ---- shared

    def _live(self, key: StepKey, attempt: int) -> tuple[Engine, Run] | None:
        """The run of an attempt that is still wanted."""
        found = self._state.runs.get((key, attempt))
        if not found or found[1].aborting:
            return None
        found[0].touch(found[1])
        return found

    def _charge(self, run: Run, output_tokens: int | None = None) -> None:
        """Charge the service since the last time; what the cache held is free, and so is waiting."""
        state = self._state
        resident = run.prompt_tokens - run.cached_tokens + run.output_tokens
        if run.step.state is CallState.RUNNING or run.aborting:
            state.accounts.charge(run.step, resident * (state.now_s - run.last_s))
            state.queue.charged(run.step)
        run.last_s = state.now_s
        if output_tokens is not None:
            run.output_tokens = max(run.output_tokens, output_tokens)

    def _remove(self, engine: Engine, run: Run) -> None:
        engine.remove(run)
        del self._state.runs[run.step.key, run.attempt]
        self._keeper.lead_ended(engine, run)


def _sum(a: Usage, b: Usage) -> Usage:
    return Usage(
        a.prompt_tokens + b.prompt_tokens,
        a.cached_tokens + b.cached_tokens,
        a.output_tokens + b.output_tokens,
        a.estimated or b.estimated,
    )
