"""The scheduler: events and a time in, actions out. No clock, no I/O, no randomness; the server, the simulator and tests drive it alike.

    check(event)            pure; raises Refused. What it let pass, handle takes without fail.
    handle(event, now_s)    1. what is due by now   2. the event itself   3. all that follows of it   4. place what can be placed
    validate()              states every invariant; tests call it after every event

The parts, each in a file of its own: `lifecycle` (programs, variables, steps), `attempts` (what engines say), `dispatch` (who runs
where), `keeper` (what engines' caches hold), `interception` (what of it while a program stalls), with `state` between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from parrot_server.core import events as ev
from parrot_server.core.attempts import Attempts
from parrot_server.core.cost import estimate_bytes
from parrot_server.core.dispatch import Dispatcher
from parrot_server.core.events import Action, Event
from parrot_server.core.interception import Interceptions
from parrot_server.core.keeper import Keeper
from parrot_server.core.lifecycle import Lifecycle, key_of
from parrot_server.core.model import ENDED, CallState, Failure, FunctionSpec, Value
from parrot_server.core.program import Function, Program, Step, Variable
from parrot_server.core.settings import SchedulerSettings
from parrot_server.core.snapshot import engine_view, graph_view, program_view, variable_view
from parrot_server.core.state import State, Timer
from parrot_server.core.submission import Draft, compile_function, draft, too_many_bytes
from parrot_server.core.views import EngineView, GraphView, ProgramView, VariableView
from parrot_server.errors import Refused

LEAST_WEIGHT, MOST_WEIGHT = 1e-6, 1e6


class Scheduler:
    """Decides what runs where and when.

    Args:
        settings: see `SchedulerSettings`.
        work: the true work of each program by id, for clairvoyant policies; a simulator's, empty elsewhere.
    """

    def __init__(self, settings: SchedulerSettings | None = None, work: Mapping[str, float] | None = None) -> None:
        self.settings = settings or SchedulerSettings()
        self._state = State(self.settings, work or {})
        self._keeper = Keeper(self._state)
        self._interceptions = Interceptions(self._state, self._keeper)
        self._dispatcher = Dispatcher(self._state, self._keeper, self._interceptions)
        self._lifecycle = Lifecycle(self._state, self._dispatcher, self._keeper, self._interceptions)
        self._attempts = Attempts(self._state, self._lifecycle, self._dispatcher, self._keeper, self._interceptions)
        self._draft: tuple[Event, Draft] | None = None
        self._wake_s: float | None = None
        self._handlers: Mapping[type, Callable[..., None]] = {
            ev.Registered: self._registered,
            ev.Submitted: self._submitted,
            ev.CallsAdded: self._calls_added,
            ev.Closed: self._closed,
            ev.Cancelled: self._cancelled,
            ev.VariableSet: self._variable_set,
            ev.CriteriaSet: self._criteria_set,
            ev.LimitsSet: lambda event: self._state.accounts.set_weights(event.weights),
            ev.Watched: lambda event: self._watch(event, 1),
            ev.Unwatched: lambda event: self._watch(event, -1),
            ev.EngineUp: self._attempts.engine_up,
            ev.EngineDown: self._attempts.engine_down,
            ev.EngineLoad: self._attempts.engine_load,
            ev.Started: self._attempts.started,
            ev.Prefilled: self._attempts.prefilled,
            ev.Progress: self._attempts.progress,
            ev.Finished: self._attempts.finished,
            ev.Failed: self._attempts.failed,
            ev.Paused: self._attempts.paused,
            ev.Aborted: self._attempts.aborted,
            ev.Warmed: self._attempts.warmed,
            ev.WarmFailed: self._attempts.warm_failed,
            ev.KvChanged: self._attempts.kv_changed,
            ev.Drain: self._drain,
            ev.Recovered: self._attempts.recovered,
        }
        self._timers: Mapping[Timer, Callable[..., None]] = {
            Timer.RETRY: self._retry,
            Timer.TIMEOUT: self._timeout,
            Timer.LAXITY: self._laxity,
            Timer.WALL: self._wall_spent,
            Timer.LIFETIME: self._lifetime_spent,
            Timer.FORGET: self._lifecycle.forget,
            Timer.PIN: self._refresh_pin,
            Timer.STALL: self._stall_overdue,
        }

    # ---- the face

    def check(self, event: Event) -> None:
        """Raise Refused if an event cannot be taken. Changes nothing."""
        match event:
            case ev.Registered(function):
                compile_function(function)
            case ev.Submitted():
                self._check_submit(event)
            case ev.CallsAdded():
                program = self._open_program(event.program)
                if program.closed:
                    raise Refused("program_closed", f"program {program.id!r} is closed: it takes no calls", status=409)
                self._draft = (event, self._draft_of(event, program))
            case ev.Closed(program) | ev.Cancelled(program):
                self._program(program)
            case ev.VariableSet():
                self._check_set(event)
            case ev.LimitsSet():
                for tenant, weight in event.weights:
                    _check_weight(weight, f"the weight of tenant {tenant!r}", at="weights")
            case ev.CriteriaSet():
                program = self._open_program(event.program)
                if event.priority is not None:
                    _check_weight(event.priority, "the priority", at="priority")
                for name, _ in event.criteria:
                    self._variable(program, name)
            case ev.Watched(program, name) | ev.Unwatched(program, name):
                self._variable(self._program(program), name)

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Take an event that `check` let pass, at a time that never goes back. Returns what is to be done, in order."""
        state = self._state
        assert now_s >= state.now_s, f"time went back from {state.now_s} to {now_s}"
        state.now_s = now_s
        for timer, name in state.due():
            handler = self._timers.get(timer)
            if handler:
                handler(*name)
        handler = self._handlers.get(type(event))
        if handler:
            handler(event)
        self._lifecycle.settle()
        self._dispatcher.schedule()
        if state.next_due_s is not None and state.next_due_s != self._wake_s:
            self._wake_s = state.next_due_s
            state.actions.append(ev.WakeAt(self._wake_s))
        actions, state.actions = state.actions, []
        return actions

    def validate(self) -> None:
        """State every invariant. Raises AssertionError."""
        state = self._state
        for program in state.programs.values():
            program.validate()
        for engine in state.engines.values():
            engine.validate()
        state.queue.validate()
        steps = [step for program in state.programs.values() for step in program.steps.values()]
        self._dispatcher.validate(steps)
        state.prefixes.validate(steps)
        runs = {pair for engine in state.engines.values() for pair in engine.runs}
        assert runs == set(state.runs), "the index of runs is wrong"
        for step in steps:
            running = (step.key, step.attempt) in runs
            assert running or step.engine is None or step.state in ENDED, f"{step.key} is {step.state} and in no engine"

    # ---- views

    def program(self, program_id: str) -> ProgramView:
        """A program's state. Raises Refused (404)."""
        return program_view(self._state, self._program(program_id))

    def programs(self) -> list[str]:
        """The ids of all programs that are still known, in order of submission."""
        return list(self._state.programs)

    def variable(self, program_id: str, name: str) -> VariableView:
        """A variable's state. Raises Refused (404)."""
        program = self._program(program_id)
        return variable_view(program, self._variable(program, name))

    def graph(self, program_id: str) -> GraphView:
        """A program's graph. Raises Refused (404)."""
        return graph_view(self._state, self._program(program_id))

    def engines(self) -> list[EngineView]:
        """All engines that ever came up."""
        return [engine_view(engine, self._state.now_s) for engine in self._state.engines.values()]

    def function(self, function_id: str) -> FunctionSpec:
        """A registered function. Raises Refused (404)."""
        try:
            return self._state.functions[function_id].spec
        except KeyError:
            raise Refused("unknown_function", f"no function {function_id!r} is registered", status=404) from None

    def functions(self) -> list[FunctionSpec]:
        """All registered functions."""
        return [function.spec for function in self._state.functions.values()]

    # ---- checks

    def _program(self, program_id: str) -> Program:
        try:
            return self._state.programs[program_id]
        except KeyError:
            raise Refused("unknown_program", f"there is no program {program_id!r}", status=404) from None

    def _open_program(self, program_id: str) -> Program:
        program = self._program(program_id)
        if program.ended:
            raise Refused("program_ended", f"program {program_id!r} has ended ({program.state})", status=409)
        return program

    def _variable(self, program: Program, name: str) -> Variable:
        try:
            return program.variables[name]
        except KeyError:
            message = f"program {program.id!r} has no variable {name!r}"
            raise Refused("unknown_variable", message, status=404) from None

    def _draft_of(self, event: ev.Submitted | ev.CallsAdded, program: Program | None) -> Draft:
        made = draft(event, program, self._lifecycle.known_functions(program), self.settings)
        for i, item in enumerate(made.calls):
            self._check_engines(item.call.id, item.call.model, item.function, at=f"calls[{i}]")
        return made

    def _check_engines(self, call: str, model: str, function: Function | None, at: str) -> None:
        """Refuse what no engine that was ever seen can do."""
        engines = list(self._state.engines.values())
        if not engines or function is None:
            return
        serving = self._state.serving(model)
        if not serving:
            names = sorted({name for engine in engines for name in engine.spec.models})
            message = f"call {call!r}: no engine serves the model {model!r}; there are {', '.join(names)}"
            raise Refused("unknown_model", message, call=call, at=f"{at}.model")
        continues = function.chat and any(map(function.template.continues, function.template.outputs))
        if continues and not any(engine.spec.continues for engine in serving):
            message = f"call {call!r}: {function.spec.name!r} continues an assistant's turn, which no engine here can"
            raise Refused("cannot_continue", message, call=call, at=at)

    def _check_submit(self, event: ev.Submitted) -> None:
        if self._state.draining:
            raise Refused("draining", "the server is shutting down and takes no new programs", status=503)
        _check_weight(event.priority, "the priority", at="priority")
        if event.program in self._state.programs:
            raise Refused("duplicate_program", f"there is a program {event.program!r} already", status=409)
        self._draft = (event, self._draft_of(event, None))

    def _check_set(self, event: ev.VariableSet) -> None:
        program = self._program(event.program)
        variable = self._variable(program, event.name)
        if variable.producers:
            call = variable.producers[0].call.id
            message = f"variable {event.name!r} is set by call {call!r}"
            raise Refused("has_producer", message, status=409, call=call)
        if variable.outcome is None:
            refused = too_many_bytes(program.value_bytes + estimate_bytes([event.value]), self.settings)
            if refused:
                raise refused
            return
        if self._is_same(variable.outcome, event.value):
            return
        what = "is set already, to another value" if isinstance(variable.outcome, Value) else "can be set no more"
        raise Refused("already_set", f"variable {event.name!r} {what}", status=409)

    @staticmethod
    def _is_same(outcome: Value | Failure, value: Value) -> bool:
        return isinstance(outcome, Value) and (outcome.text, outcome.items) == (value.text, value.items)

    # ---- clients

    def _registered(self, event: ev.Registered) -> None:
        self._state.functions.setdefault(event.function.id, compile_function(event.function))

    def _take_draft(self, event: ev.Submitted | ev.CallsAdded, program: Program | None) -> Draft:
        """The draft that `check` made, if this is the event that was checked last."""
        made, self._draft = self._draft, None
        return made[1] if made and made[0] is event else self._draft_of(event, program)

    def _submitted(self, event: ev.Submitted) -> None:
        self._lifecycle.submit(event, self._take_draft(event, None))

    def _calls_added(self, event: ev.CallsAdded) -> None:
        self._lifecycle.add(event, self._take_draft(event, self._state.programs[event.program]))

    def _closed(self, event: ev.Closed) -> None:
        self._lifecycle.close(self._state.programs[event.program])

    def _cancelled(self, event: ev.Cancelled) -> None:
        self._lifecycle.cancel(self._state.programs[event.program])

    def _variable_set(self, event: ev.VariableSet) -> None:
        program = self._state.programs[event.program]
        self._lifecycle.resolve(program, program.variables[event.name], event.value)

    def _criteria_set(self, event: ev.CriteriaSet) -> None:
        self._lifecycle.change(self._state.programs[event.program], event)

    def _watch(self, event: ev.Watched | ev.Unwatched, more: int) -> None:
        program = self._state.programs.get(event.program)
        if program and event.name in program.variables:
            program.variables[event.name].watchers += more
            program.watchers += more

    # ---- the server

    def _drain(self, event: ev.Drain) -> None:
        self._state.draining = True

    # ---- what falls due

    def _step_of(self, *name: str | int) -> Step | None:
        step = self._state.step(key_of(name))
        return step if step and step.state not in ENDED else None

    def _retry(self, *name: str | int) -> None:
        step = self._step_of(*name)
        if step and step.rests:
            step.rests = False
            self._state.enqueue(step)

    def _timeout(self, *name: str | int) -> None:
        step = self._step_of(*name)
        if step:
            message = f"call {step.call.id!r} did not end within its {step.call.timeout_s} s"
            self._lifecycle.end_step(step, CallState.FAILED, Failure("timeout", message, step.call.id, retryable=True))

    def _laxity(self, *name: str | int) -> None:
        step = self._step_of(*name)
        if step:
            self._lifecycle.check_slack(step)

    def _wall_spent(self, program_id: str) -> None:
        program = self._state.programs.get(program_id)
        if program and program.wall_due_s is not None and program.wall_due_s <= self._state.now_s:
            message = f"the program's budget of {program.budget.wall_s} s is spent"
            self._lifecycle.fail_open(program, Failure("budget_exceeded", message))

    def _lifetime_spent(self, program_id: str) -> None:
        program = self._state.programs.get(program_id)
        if program:
            message = f"the program had not ended after {self.settings.lifetime_s} s"
            self._lifecycle.fail_open(program, Failure("expired", message))

    def _refresh_pin(self, engine_id: str, prefix: str) -> None:
        engine = self._state.engines.get(engine_id)
        if engine:
            self._keeper.refresh(engine, prefix)

    def _stall_overdue(self, _program: str, engine_id: str, prefix: str) -> None:
        engine = self._state.engines.get(engine_id)
        if engine:
            self._interceptions.overdue(engine, prefix)


def _check_weight(weight: float, what: str, at: str) -> None:
    """Service is divided by weights: one near zero, or none at all, would make it no number."""
    if not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
        raise Refused("bad_value", f"{what} is {weight:g}: it is from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}", at=at)
