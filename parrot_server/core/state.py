"""All that the scheduler knows, in one place; the parts of the scheduler share it."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Mapping
from enum import StrEnum

from parrot_server.core.events import Action, CallChanged
from parrot_server.core.fairness import Accounts
from parrot_server.core.fleet import Engine
from parrot_server.core.model import CallState, CostModel, StepKey
from parrot_server.core.policy import policy_named
from parrot_server.core.predict import Predictor
from parrot_server.core.prefix import PrefixTable
from parrot_server.core.program import Function, Program, Step
from parrot_server.core.queue import Pool, ReadyQueue
from parrot_server.core.runs import Run
from parrot_server.core.settings import SchedulerSettings


class Timer(StrEnum):
    """What can be due."""

    RETRY = "retry"  # a step may be tried again
    TIMEOUT = "timeout"  # a step's own time-out
    LAXITY = "laxity"  # a step with a deadline has no slack left
    WALL = "wall"  # a program's budget of seconds
    LIFETIME = "lifetime"
    FORGET = "forget"
    BREAKER = "breaker"  # an engine may be probed
    PIN = "pin"  # an engine must be asked to keep a prefix on
    STALL = "stall"  # what is held over a stall is held no longer


ENGINE_TIMERS = frozenset({Timer.BREAKER, Timer.PIN})  # of engines, the others are of programs
Due = tuple[float, int, Timer, tuple[str | int, ...]]


class State:
    """Programs, engines, queue, accounts and timers; `actions` collects what the present event leads to."""

    def __init__(self, settings: SchedulerSettings, work: Mapping[str, float]) -> None:
        self.settings = settings
        self.policy = policy_named(settings.policy)
        self.now_s = 0.0
        self.actions: list[Action] = []
        self.programs: dict[str, Program] = {}
        self.ended: dict[str, int] = {}  # programs that have ended and are still kept, oldest first, with their sizes
        self.ended_bytes = 0
        self.functions: dict[str, Function] = {}
        self.engines: dict[str, Engine] = {}
        self.runs: dict[tuple[StepKey, int], tuple[Engine, Run]] = {}
        self.accounts = Accounts()
        self.predictor = Predictor()
        self.prefixes = PrefixTable()
        self.queue = ReadyQueue(self.policy, settings, self.accounts, work)
        self.sequence: Iterator[int] = itertools.count(1)
        self.draining = False
        self._timers: list[Due] = []
        self._timer_count = 0
        self._timers_swept = 0  # how many were left when those of forgotten programs were last thrown out

    def step(self, key: StepKey) -> Step | None:
        """The step of that name, if it is still known."""
        program = self.programs.get(key.program)
        return program.steps.get((key.call, key.step)) if program else None

    def move(self, step: Step, state: CallState) -> None:
        """Bring a step to another state and say so."""
        step.move(state)
        self.actions.append(CallChanged(step.key, state, step.attempt))

    def enqueue(self, step: Step) -> None:
        """Queue a step that is ready, or paused in its engine."""
        assert step.state in (CallState.READY, CallState.PAUSED), f"{step.key} is {step.state}"
        step.queued_s = self.now_s - step.waited_s
        pool: Pool = ("model", step.call.model)
        if step.state is CallState.PAUSED:
            assert step.engine is not None, f"{step.key} is paused nowhere"
            pool = ("paused", step.engine)
        self.queue.push(step, pool)

    def cost(self) -> CostModel:
        """The costs by which paths are predicted: those of the first engine that is up."""
        return next((engine.cost for engine in self.engines.values() if engine.up), CostModel())

    def serving(self, model: str) -> list[Engine]:
        """Engines that answer to a model's name; the empty name is any engine's."""
        return [engine for engine in self.engines.values() if not model or model in engine.spec.models]

    def able(self, step: Step) -> list[Engine]:
        """Engines that serve a step's model and can all that it needs; where none can, those that serve its model."""
        serving = self.serving(step.call.model)
        if len(serving) < 2:
            return serving
        return [engine for engine in serving if all(getattr(engine.spec, need) for need in step.needs)] or serving

    def set_timer(self, time_s: float, timer: Timer, *name: str | int) -> None:
        """Have something fall due."""
        self._timer_count += 1
        heapq.heappush(self._timers, (time_s, self._timer_count, timer, name))
        if len(self._timers) > 2 * self._timers_swept + 1000:
            self._timers = [due for due in self._timers if self._is_wanted(due)]
            heapq.heapify(self._timers)
            self._timers_swept = len(self._timers)

    def _is_wanted(self, due: Due) -> bool:
        _, _, timer, (owner, *_) = due
        return timer in ENGINE_TIMERS or owner in self.programs

    def due(self) -> Iterator[tuple[Timer, tuple[str | int, ...]]]:
        """Take out what is due now."""
        while self._timers and self._timers[0][0] <= self.now_s:
            _, _, timer, name = heapq.heappop(self._timers)
            yield timer, name

    @property
    def next_due_s(self) -> float | None:
        """When the next thing is due."""
        return self._timers[0][0] if self._timers else None
