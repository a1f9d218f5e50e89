"""Programs from submit to end: variables resolve, steps become ready, failures travel, programs end and are forgotten.

Everything here is a worklist: `resolve` notes an outcome, `settle` follows all that comes of it, without recursion.
"""

from __future__ import annotations

import json
from collections import ChainMap, deque

from parrot_server.core import graph, objective
from parrot_server.core.cost import estimate_bytes, estimate_tokens
from parrot_server.core.dispatch import Dispatcher
from parrot_server.core.events import CallsAdded, CriteriaSet, Forget, ProgramEnded, Resolve, Submitted
from parrot_server.core.fairness import finish_path, inherit
from parrot_server.core.interception import Interceptions
from parrot_server.core.keeper import Keeper
from parrot_server.core.model import ENDED, IN_ENGINE, CallState, Failure, Objective, Op, PieceKind, StepKey, Value
from parrot_server.core.prefix import build_prompt
from parrot_server.core.program import Function, Program, Step, Variable
from parrot_server.core.state import State, Timer
from parrot_server.core.submission import Draft, too_many_bytes, too_many_calls
from parrot_server.core.transform import TransformFailed, apply, elements

CANCELLED = Failure("cancelled", "the program was cancelled")
LAXITY_FACTOR = 2.0  # a deadline call is expedited when no more than this times its remaining path is left


class Lifecycle:
    """The life of programs. Owns no state of its own but the worklist."""

    def __init__(self, state: State, dispatcher: Dispatcher, keeper: Keeper, interceptions: Interceptions) -> None:
        self._state = state
        self._dispatcher = dispatcher
        self._keeper = keeper
        self._interceptions = interceptions
        self._outcomes: deque[tuple[Program, Variable, Value | Failure]] = deque()
        self._touched: dict[str, Program] = {}

    # ---- opening and growing

    def submit(self, event: Submitted, draft: Draft) -> None:
        """Open a program with what it holds so far."""
        state = self._state
        program = Program(
            id=event.program,
            seq=next(state.sequence),
            name=event.name,
            tenant=event.tenant,
            priority=event.priority,
            submitted_s=state.now_s,
            deadline_s=None if event.deadline_s is None else state.now_s + event.deadline_s,
            budget=event.budget,
            fail_fast=event.fail_fast,
            closed=event.closed,
        )
        state.programs[program.id] = program
        state.accounts.opened(program)
        state.set_timer(state.now_s + state.settings.lifetime_s, Timer.LIFETIME, program.id)
        if program.wall_due_s is not None:
            state.set_timer(program.wall_due_s, Timer.WALL, program.id)
        self._grow(program, draft)

    def add(self, event: CallsAdded, draft: Draft) -> None:
        """Add calls to a live program."""
        program = self._state.programs[event.program]
        program.closed = program.closed or event.close
        if draft.calls and program.idle_since_s is not None:
            self._learn_stall(program, self._state.now_s - program.idle_since_s)
        self._grow(program, draft)
        self._interceptions.went_on(program)

    def _grow(self, program: Program, draft: Draft) -> None:
        program.functions.update({function.spec.id: function for function in draft.functions})
        steps = graph.insert(program, draft, self._state.sequence)
        self._touched[program.id] = program
        self.deduce(program, steps)
        self._begin(steps)

    def _begin(self, steps: list[Step]) -> None:
        """Start what can start, and count the others as future users of what they begin with."""
        for step in steps:
            failure = graph.first_failure(step.program, step)
            if step.state in ENDED:  # one before it failed fast, or won a race
                continue
            if failure:
                self.end_step(step, CallState.FAILED, failure)
            elif step.missing == 0:
                self._ready(step)
            elif step.function and not step.call.each:
                self._state.prefixes.pin(step, build_prompt(step, head_only=True))

    def deduce(self, program: Program, steps: list[Step]) -> None:
        """Deduce objectives for steps and what stands above them, and put what is queued in its new place."""
        for step in objective.deduce(program, steps, self._state.predictor, self._state.cost()):
            self._repriced(step)
            slack_ends_s = _slack_ends_s(step)
            if slack_ends_s is not None and step.objective is Objective.BATCH:
                self._state.set_timer(slack_ends_s, Timer.LAXITY, *step.key)

    def check_slack(self, step: Step) -> None:
        """Expedite a step with a deadline that can wait no longer."""
        slack_ends_s = _slack_ends_s(step)
        spent = slack_ends_s is not None and slack_ends_s <= self._state.now_s
        if spent and step.objective is Objective.BATCH and step.group is None:
            step.objective = Objective.EXPEDITE
            self._repriced(step)

    def _repriced(self, step: Step) -> None:
        """A step's objective or path has changed: its place in the queue or in its engine's batch does too."""
        self._state.queue.repush(step)
        found = self._state.runs.get((step.key, step.attempt))
        if found:
            found[0].touch(found[1])

    def change(self, program: Program, event: CriteriaSet) -> None:
        """What the user wants has changed."""
        state = self._state
        program.priority = event.priority or program.priority
        if event.budget:
            program.budget = program.budget.changed(event.budget)
        if program.wall_due_s is not None:
            state.set_timer(program.wall_due_s, Timer.WALL, program.id)
        if event.deadline_s is not None:
            program.deadline_s = program.submitted_s + event.deadline_s
        for name, criterion in event.criteria:
            program.variables[name].criterion = criterion
        self.deduce(program, program.open())

    # ---- steps

    def _ready(self, step: Step) -> None:
        """All that a step waits for is there."""
        state = self._state
        if step.ready_s is None:
            step.ready_s = state.now_s
            if step.call.timeout_s is not None:
                state.set_timer(state.now_s + step.call.timeout_s, Timer.TIMEOUT, *step.key)
        if step.call.each and not step.expanded:
            self._expand(step)
        elif step.expanded:
            items = [step.program.variables[name].outcome for name in step.waits]
            texts = tuple(item.text for item in items if isinstance(item, Value))
            self._computed(step, Value(json.dumps(texts, ensure_ascii=False), sum(map(estimate_tokens, texts)), texts))
        elif step.call.op is Op.TRANSFORM:
            self._transform(step)
        else:
            step.prompt = build_prompt(step)
            if not any(piece.text.strip() for piece in step.prompt.pieces if piece.kind is not PieceKind.ROLE):
                message = f"call {step.call.id!r}: all that its prompt holds is white space"
                self.end_step(step, CallState.FAILED, Failure("empty_prompt", message, step.call.id))
                return
            inherit(step)
            state.prefixes.pin(step, step.prompt)
            state.move(step, CallState.READY)
            self._state.enqueue(step)

    def _learn_stall(self, program: Program, stall_s: float) -> None:
        """A program goes on: a tool, a person, or its client took so long since all its calls had ended."""
        program.idle_since_s = None
        if program.reader is not None:
            self._state.predictor.saw_stall(program.reader, stall_s)

    def _transform(self, step: Step) -> None:
        assert step.call.transform is not None, f"{step.key} has nothing to do"
        ((_, binding),) = step.call.inputs
        if not self._check_bytes(step.program):
            return
        try:
            (value,) = elements(step.program, binding)
            self._computed(step, apply(step.call.transform, value))
        except TransformFailed as error:
            self.end_step(step, CallState.FAILED, Failure("transform_failed", str(error), step.call.id))

    def _expand(self, step: Step) -> None:
        """Spread an `each` step over the elements of its list."""
        program, settings = step.program, self._state.settings
        try:
            items = elements(program, step.inputs[step.call.each], spread=True)
        except TransformFailed as error:
            self.end_step(step, CallState.FAILED, Failure("not_a_list", str(error), step.call.id))
            return
        spread_already = any(sibling.expanded for sibling in program.calls[step.call.id])
        refused = too_many_calls(len(program.calls) + (0 if spread_already else len(items)), program.budget, settings)
        if refused:
            self.end_step(step, CallState.FAILED, Failure(refused.type, refused.message, step.call.id))
            return
        made = graph.expand(program, step, items, self._state.sequence)
        self.deduce(program, [step, *made])
        self._check_bytes(program)
        self._begin(made)
        if step.state is CallState.WAITING and step.missing == 0:
            self._ready(step)

    def _computed(self, step: Step, value: Value) -> None:
        self._state.move(step, CallState.READY)
        self.end_step(step, CallState.DONE, value)

    def end_step(self, step: Step, ended: CallState, outcome: Value | Failure) -> None:
        """A step has ended: with its value, or with the failure that ended it."""
        state, program = self._state, step.program
        if step.state in IN_ENGINE:
            self._dispatcher.abort(step)
        self._dispatcher.withdraw(step)
        state.move(step, ended)
        step.ended_s = state.now_s
        if ended is CallState.DONE and step.prompt is not None:
            program.reader = step
        step.failure = outcome if isinstance(outcome, Failure) else None
        program.open_steps -= 1
        finish_path(step)
        self._touched[program.id] = program
        self._keeper.release(step)
        last = objective.leave_group(step)
        if last is not None:
            self.deduce(program, [last])
        self._conclude(step, outcome)

    def _conclude(self, step: Step, outcome: Value | Failure) -> None:
        """What a step's end means for its variable, for its rivals in a race, and for a program that fails fast."""
        variable, program = step.variable, step.program
        rivals = [other for other in variable.producers if other.state not in ENDED]
        if isinstance(outcome, Failure) and step.state is CallState.FAILED and not rivals:
            outcome = _fallback(variable) or outcome
        if isinstance(outcome, Value) or not rivals:
            self.resolve(program, variable, outcome)
        if isinstance(outcome, Value):
            for rival in rivals:
                lost = Failure("lost_race", f"another call of the race {rival.call.race!r} was first", rival.call.id)
                self.end_step(rival, CallState.CANCELLED, lost)
        elif program.fail_fast and step.state is CallState.FAILED and not rivals:
            self._cancel_open(program, outcome)

    # ---- variables

    def resolve(self, program: Program, variable: Variable, outcome: Value | Failure) -> None:
        """Note the outcome of a variable; the first one counts."""
        if isinstance(outcome, Value) and variable.outcome is None:
            program.value_bytes += estimate_bytes([outcome])
        self._outcomes.append((program, variable, outcome))

    def settle(self) -> None:
        """Follow all outcomes to their end, then end the programs that are done."""
        while self._outcomes or self._touched:
            while self._outcomes:
                self._settle_one(*self._outcomes.popleft())
            touched, self._touched = self._touched, {}
            for program in touched.values():
                self._end_if_done(program)

    def _settle_one(self, program: Program, variable: Variable, outcome: Value | Failure) -> None:
        if variable.outcome is not None:
            return
        variable.outcome = outcome
        self._touched[program.id] = program
        self._state.actions.append(Resolve(program.id, variable.name, outcome))
        for step in variable.waiters:
            if step.state in ENDED:
                continue
            if isinstance(outcome, Failure):
                self.end_step(step, CallState.FAILED, outcome)
                continue
            step.missing -= 1
            if step.missing == 0:
                self._ready(step)
            elif step.missing <= 2:
                self._keeper.prefill_early(step)
        self._check_bytes(program)

    # ---- ending

    def _check_bytes(self, program: Program) -> bool:
        """Whether a program's values are within the limit; one whose values have grown beyond it goes no further."""
        refused = too_many_bytes(program.value_bytes, self._state.settings)
        if refused:
            self.fail_open(program, Failure(refused.type, refused.message))
        return refused is None

    def close(self, program: Program) -> None:
        """No more calls will come."""
        program.closed = True
        self._touched[program.id] = program

    def _end_if_done(self, program: Program) -> None:
        state = self._state
        if program.ended or program.open_steps:
            return
        if not (program.closed or program.cancelled):
            if program.idle_since_s is None:
                program.idle_since_s = state.now_s
                self._interceptions.begin(program)
            return
        for variable in program.variables.values():
            if variable.outcome is None:
                message = f"the program ended and nothing had set {variable.name!r}"
                variable.outcome = CANCELLED if program.cancelled else Failure("never_set", message)
                state.actions.append(Resolve(program.id, variable.name, variable.outcome))
        program.ended_s = state.now_s
        self._interceptions.end(program)
        state.accounts.ended(program)
        state.actions.append(ProgramEnded(program.id, program.state))
        state.ended[program.id] = program.size_bytes
        state.ended_bytes += program.size_bytes
        state.set_timer(state.now_s + state.settings.retain_s, Timer.FORGET, program.id)
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        """Keep no more ended programs than the settings allow, but the latest, and those that a reader is waiting at."""
        state, settings = self._state, self._state.settings
        latest = next(reversed(state.ended))
        while len(state.ended) > settings.retained_programs or state.ended_bytes > settings.retained_bytes:
            left = (name for name in state.ended if not state.programs[name].watchers and name != latest)
            oldest = next(left, None)
            if oldest is None:
                return
            self.forget(oldest)

    def cancel(self, program: Program, failure: Failure = CANCELLED) -> None:
        """End a program now; its queued steps are dropped, its running ones aborted."""
        if not program.ended:
            program.cancelled = True
            self._cancel_open(program, failure)

    def _cancel_open(self, program: Program, failure: Failure) -> None:
        self._touched[program.id] = program
        for step in program.open():
            if step.state not in ENDED:  # a rival of one that was ended just now
                self.end_step(step, CallState.CANCELLED, failure)
        for variable in program.variables.values():
            if variable.outcome is None and not variable.producers:
                self.resolve(program, variable, failure)

    def fail_open(self, program: Program, failure: Failure) -> None:
        """End what is still open of a program with a failure: its budget or its lifetime is spent."""
        if not program.ended:
            program.closed = True
            self._touched[program.id] = program
            for step in program.open():
                if step.state not in ENDED:  # a rival of one that was ended just now
                    self.end_step(step, CallState.FAILED, failure)
            for variable in program.variables.values():
                if variable.outcome is None and not variable.producers:
                    self.resolve(program, variable, failure)

    def forget(self, program_id: str) -> None:
        """Drop an ended program."""
        if program_id in self._state.ended:
            self._state.ended_bytes -= self._state.ended.pop(program_id)
            self._state.programs.pop(program_id).dissolve()
            self._state.actions.append(Forget(program_id))

    def known_functions(self, program: Program | None) -> ChainMap[str, Function]:
        """Functions that a program may use: its own and all registered ones."""
        own = program.functions if program else {}
        return ChainMap(own, self._state.functions)


def _fallback(variable: Variable) -> Value | None:
    """What a variable is set to when all that could have set it have failed."""
    failed = (step for step in variable.producers if step.state is CallState.FAILED)
    given = (dict(step.call.fallback).get(step.output) for step in failed)
    return next((value for value in given if value is not None), None)


def _slack_ends_s(step: Step) -> float | None:
    return None if step.due_s is None else step.due_s - LAXITY_FACTOR * step.path_s


def key_of(name: tuple[str | int, ...]) -> StepKey:
    """The step that a timer is named for."""
    program, call, step = name
    return StepKey(str(program), str(call), int(step))
