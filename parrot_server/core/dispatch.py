"""Who runs, waits, pauses and is evicted.

`schedule` runs after every event: it takes the best step of the queue until nothing more can be placed. A lane (a pool of the queue and
an urgency) whose best step cannot be placed is left alone until the next event, so that nothing overtakes within it.
"""

from __future__ import annotations

from parrot_server.core.events import Abort, Dispatch, Pause, Resume
from parrot_server.core.fleet import Engine
from parrot_server.core.interception import Interceptions
from parrot_server.core.keeper import Keeper
from parrot_server.core.model import CallState, Objective, Urgency
from parrot_server.core.placement import Plan, plan, would_slow_down
from parrot_server.core.program import Step
from parrot_server.core.queue import Lane
from parrot_server.core.runs import Run
from parrot_server.core.state import State

MAX_EVICTIONS = 2  # then a step is left where it is


class Dispatcher:
    """The hand that reaches into the queue and the engines. Owns no state of its own."""

    def __init__(self, state: State, keeper: Keeper, interceptions: Interceptions) -> None:
        self._state = state
        self._keeper = keeper
        self._interceptions = interceptions
        self._spoken_for: set[str] = set()  # engines whose room a better step waits for, in this pass

    # ---- the queue

    def withdraw(self, step: Step) -> None:
        """Take a step out of the queue, and out of those that wait for a prefix."""
        self._state.queue.remove(step)
        if step.state is CallState.READY:
            for engine in self._state.engines.values():
                for steps in engine.coming.values():
                    if step in steps:
                        steps.remove(step)

    def schedule(self) -> None:
        """Place what can be placed. Where room is wanted that was not before, what stalls may have to give it up."""
        self._place_all()
        freed = False
        for engine in self._state.engines.values():
            was_wanted, engine.wanted = engine.wanted, engine.spec.id in self._spoken_for
            if engine.wanted and not was_wanted:
                freed |= self._interceptions.reconsider(engine)
        if freed:
            self._place_all()

    def _place_all(self) -> None:
        """Place steps, best first. What room a step waits for, no worse one takes."""
        blocked: set[Lane] = set()
        self._spoken_for.clear()
        while self._could_place() and (best := self._state.queue.best(blocked)) is not None:
            _, lane, step = best
            placed = self._resume(step) if lane[0][0] == "paused" else self._send_or_wait(step)
            if not placed:
                blocked.add(lane)

    def _could_place(self) -> bool:
        """Whether looking for a step is worth while: an engine has a slot, or one can be made."""
        state = self._state
        return state.policy.deduces or any(not engine.is_full for engine in state.engines.values())

    # ---- sending

    def _send_or_wait(self, step: Step) -> bool:
        """Send a step to the engine that is best for it, or have it wait for a prefix there. False: nowhere is room."""
        state = self._state
        engines = [engine for engine in state.able(step) if engine.usable(state.now_s)]
        plans = [
            plan(step, engine, state.predictor, state.prefixes, state.settings)
            for engine in engines
            if self._is_open(step, engine)
        ]
        plans.sort(key=lambda p: (p.expected_s, p.engine.spec.id))
        for candidate in plans:
            if self._try(step, candidate):
                return True
        if engines and state.policy.deduces and step.urgency > Urgency.BACKGROUND:
            self._make_room(step, plans[0].engine if plans else engines[0])
        return False

    def _is_open(self, step: Step, engine: Engine) -> bool:
        """Whether an engine could take a step, however much room it needs."""
        if engine.is_full or engine.spec.id in self._spoken_for:
            return False
        if step.deaths and any(run.step.deaths and not run.prefilled for run in engine.runs.values()):
            return False  # of those that ran when an engine died, one at a time shows which of them did it
        return not self._is_held_back(step, engine)

    def _try(self, step: Step, candidate: Plan) -> bool:
        state, engine = self._state, candidate.engine
        if candidate.move in ("wait", "warm"):
            assert candidate.shared is not None
            return self._wait_for(step, engine, candidate.shared)
        batch = state.policy.deduces and step.objective is Objective.BATCH
        if not engine.has_room(candidate.need_tokens, state.settings, batch=batch):
            self._spoken_for.add(engine.spec.id)
            return False
        self._send(step, candidate)
        return True

    def _is_held_back(self, step: Step, engine: Engine) -> bool:
        """Whether a step must wait so that better, more urgent calls that run keep their time per token."""
        state = self._state
        if not state.policy.deduces or not would_slow_down(step, engine, state.now_s, state.settings):
            return False
        if step.objective is Objective.EXPEDITE:
            return True
        score = self._score(step)
        most_urgent = engine.totals.decoding[engine.most_urgent()].runs
        return any(self._is_before(run.step, step, self._running_score(run), score) for run in most_urgent)

    def _is_before(self, a: Step, b: Step, score_of_a: float, score_of_b: float, levels: float = 0.0) -> bool:
        """Whether a step comes before another in the queue's order, by more than so many levels.

        Whatever pauses or evicts for another must keep to that order, or the two would take turns for ever.
        """
        state = self._state
        if a.program.tenant != b.program.tenant:
            mine, others = (state.accounts.tenant(x.program.tenant).virtual_token_s for x in (a, b))
            return mine + levels * state.settings.quantum_token_s < others
        return score_of_a + levels < score_of_b

    def _wait_for(self, step: Step, engine: Engine, prefix: str) -> bool:
        """Have a step wait for a prefix; ask for it if nobody brings it yet. No more wait than can run at once."""
        if prefix not in engine.coming:
            assert step.prompt is not None
            self._keeper.keep(engine, step.prompt.head(prefix), step)
        if len(engine.coming[prefix]) >= engine.spec.max_running:
            return False
        self._leave_queue(step)
        engine.coming[prefix].append(step)
        return True

    def _send(self, step: Step, chosen: Plan) -> None:
        state, engine = self._state, chosen.engine
        assert step.prompt is not None
        self._leave_queue(step)
        step.attempt += 1
        step.engine = engine.spec.id
        step.sent_s, step.started_s, step.first_token_s = state.now_s, None, None
        state.move(step, CallState.SENT)
        run = Run(
            step=step,
            attempt=step.attempt,
            shared=step.prompt if engine.spec.shares_prefixes else None,
            own_tokens=chosen.own_tokens,
            expected_tokens=chosen.output_tokens,
            prompt_tokens=chosen.prompt_tokens,
            cached_tokens=chosen.held_tokens,
            last_s=state.now_s,
        )
        if chosen.move == "lead" and chosen.shared is not None:
            run.leads = chosen.shared
            engine.coming[run.leads] = []
        engine.add(run)
        state.runs[step.key, step.attempt] = (engine, run)
        engine.probing = engine.open_until_s is not None
        state.accounts.dispatched(step)
        state.actions.append(self._dispatch(step, engine))
        self._pause_for(step, engine)
        for child in step.program.children(step):
            if child.missing <= 1:
                self._keeper.prefill_early(child)

    def _dispatch(self, step: Step, engine: Engine) -> Dispatch:
        assert step.prompt is not None
        model = step.call.model or engine.spec.models[0]
        return Dispatch(
            key=step.key,
            attempt=step.attempt,
            engine=engine.spec.id,
            model=model,
            prompt=step.prompt,
            sampling=step.sampling,
            variable=step.variable.name,
            salt=step.program.tenant,
            priority=step.urgency - Urgency.BATCH if self._state.policy.deduces else 0,
            grant_tokens=self._grant(),
        )

    def _grant(self) -> int | None:
        return self._state.settings.grant_tokens

    def _leave_queue(self, step: Step) -> None:
        step.waited_s = self._state.now_s - step.queued_s
        self._state.queue.remove(step)

    # ---- pausing, resuming, evicting

    def _running_score(self, run: Run) -> float:
        """The score that a running step would have if it were to queue now."""
        run.step.queued_s = self._state.now_s - run.step.waited_s
        return self._score(run.step)

    def _score(self, step: Step) -> float:
        """The score by which a step moves through the queue, or would if it were paused."""
        pool = ("paused", step.engine) if step.engine is not None else ("model", step.call.model)
        return self._state.queue.score_among(step, pool)

    def _resume(self, step: Step) -> bool:
        state = self._state
        assert step.engine is not None
        engine = state.engines[step.engine]
        if engine.is_full or self._is_held_back(step, engine):
            return False
        self._leave_queue(step)
        state.move(step, CallState.RUNNING)
        run = engine.runs[step.key, step.attempt]
        run.last_s, run.paused = state.now_s, False
        engine.touch(run)
        state.accounts.dispatched(step)
        state.actions.append(Resume(step.key, step.attempt, engine.spec.id, self._grant()))
        self._pause_for(step, engine)
        return True

    def _pause_for(self, step: Step, engine: Engine) -> None:
        """A step joined a batch: pause calls there that stretch those of better, more urgent ones too far; the best stay."""
        state = self._state
        most = engine.most_urgent()
        if not state.policy.deduces or not engine.spec.can_pause or step.urgency < most:
            return
        budget_s = engine.corunner_budget_s(state.settings)
        if engine.corunners_s() <= budget_s:
            return
        kept = engine.totals.decoding[most].runs
        best, _, first = min((self._running_score(run), run.step.seq, run) for run in kept)
        for score, _, run in sorted((self._running_score(run), run.step.seq, run) for run in engine.less_urgent(most)):
            budget_s -= engine.corunner_s(run.resident_tokens)
            patient = run.step.waited_s < state.settings.patience_s
            if budget_s < 0 and patient and self._is_before(first.step, run.step, best, score):
                self._pause(engine, run)

    def _pause(self, engine: Engine, run: Run) -> None:
        run.pausing = True
        engine.touch(run)
        self._state.actions.append(Pause(run.step.key, run.attempt, engine.spec.id))

    def _make_room(self, step: Step, engine: Engine) -> None:
        """A step that somebody waits for found no room: pause or evict a less urgent one that scores worse by a level or more.

        One is paused only where its slot is all that is missing: else it would go on at once, and be paused again for ever.
        """
        state = self._state
        if engine.totals.leaving or (engine.is_full and not engine.spec.can_pause):
            return  # room is on its way, or none can be made
        lesser = engine.less_urgent(step.urgency)
        idle = [run for run in engine.totals.paused if run.step.urgency < step.urgency]  # they have room, but no slot
        if not (lesser or idle) or would_slow_down(step, engine, state.now_s, state.settings):
            return  # nobody could make room, or it is not for want of room
        mine = self._score(step)
        need_tokens = plan(step, engine, state.predictor, state.prefixes, state.settings).need_tokens
        batch = step.objective is Objective.BATCH
        slot_only = engine.has_tokens(need_tokens, state.settings, batch=batch)
        if slot_only and not engine.is_full:
            return  # it waits for something else
        worse = [
            (score, run.step.seq, run)
            for run in (lesser if slot_only else [*lesser, *idle])
            if (slot_only or run.step.evictions < MAX_EVICTIONS)
            and self._is_before(step, run.step, mine, score := self._score_of(run), levels=1.0)
        ]
        if not worse:
            return
        _, _, victim = max(worse)
        if slot_only:
            self._pause(engine, victim)
        else:
            victim.step.evictions += 1
            self.evict(victim.step)

    def _score_of(self, run: Run) -> float:
        return self._score(run.step) if run.step in self._state.queue else self._running_score(run)

    def evict(self, step: Step) -> None:
        """Let a step's attempt go and queue it again, with its place and its pins."""
        self.abort(step)
        self.requeue(step)

    def requeue(self, step: Step) -> None:
        """A step whose attempt is over waits in the queue for another."""
        self.retire(step)
        self._state.enqueue(step)

    def retire(self, step: Step) -> None:
        """A step's attempt is over; it is ready for another, with its pins, but not queued yet."""
        assert step.prompt is not None
        self.withdraw(step)
        self._state.move(step, CallState.READY)
        step.engine = None
        self._state.prefixes.pin(step, step.prompt)

    def abort(self, step: Step) -> None:
        """Ask the engine that has a step to let it go; its room is free when it says so."""
        found = self._state.runs.get((step.key, step.attempt))
        if found is None:
            return
        engine, run = found
        run.aborting = True
        engine.touch(run)
        self._keeper.lead_ended(engine, run)
        self._state.actions.append(Abort(step.key, step.attempt, engine.spec.id))

    def validate(self, steps: list[Step]) -> None:
        """Each ready step is queued, waits for a prefix or rests, exactly one of them; each paused one is queued.

        Raises AssertionError.
        """
        queue = self._state.queue
        coming = [step for engine in self._state.engines.values() for steps in engine.coming.values() for step in steps]
        assert len(coming) == len(set(coming)), "a step waits for two prefixes"
        waiting = set(coming)
        for step in queue:
            assert step.state in (CallState.READY, CallState.PAUSED), f"{step.key} is {step.state} and queued"
            assert step not in waiting, f"{step.key} is queued and waits for a prefix"
        for step in waiting:
            assert step.state is CallState.READY, f"{step.key} is {step.state} and waits for a prefix"
        for step in steps:
            places = (step in queue) + (step in waiting) + step.rests
            if step.state in (CallState.READY, CallState.PAUSED):
                assert places == 1, f"{step.key} is {step.state} and in {places} places"
