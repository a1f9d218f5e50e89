"""A virtual clock around the real scheduler: a heap of what will happen, and events handled in the order in which they come.

Deterministic: what happens at the same moment happens in the order in which it was asked for, and nothing here reads a clock or rolls
dice. Two runs of the same workload give the same events, the same actions and byte for byte the same journal.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol, get_args

from parrot_server.core import events as ev
from parrot_server.core.events import Action, Event
from parrot_server.core.model import CallState, EngineSpec, Failure, StepKey, Value
from parrot_server.core.scheduler import Scheduler
from parrot_server.core.settings import SchedulerSettings

EngineAction = ev.Dispatch | ev.Pause | ev.Resume | ev.Abort | ev.Keep


class SimulatedEngine(Protocol):
    """What the simulation needs of an engine."""

    spec: EngineSpec

    def perform(self, action: EngineAction) -> None:
        """Take an order; what comes of it is posted to the simulation."""
        ...


class SimulatedClient(Protocol):
    """Whoever submitted a program is told what becomes of it."""

    def resolved(self, program: str, name: str, outcome: Value | Failure) -> None:
        """A variable has its value, or its failure."""
        ...

    def ended(self, program: str) -> None:
        """Every call of the program has ended."""
        ...


class Simulation:
    """Drives one scheduler through virtual time.

    Args:
        settings: the scheduler's.
        work: the true work of each program, for clairvoyant policies.
        observe: told of each event with its time and the actions that it led to.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        work: Mapping[str, float] | None = None,
        observe: Callable[[float, Event, list[Action]], None] | None = None,
    ) -> None:
        self.scheduler = Scheduler(settings, work)
        self.now_s = 0.0
        self.handled = 0
        self.ready_s: dict[StepKey, float] = {}
        self._observe = observe
        self._heap: list[tuple[float, int, Callable[[], None] | None]] = []  # None: a tick
        self._asked = 0
        self._pending = 0
        self._stopped = False
        self._posted: deque[Event] = deque()
        self._soon: deque[Callable[[], None]] = deque()
        self._engines: dict[str, SimulatedEngine] = {}
        self._clients: dict[str, SimulatedClient] = {}
        self._wake_s = math.inf
        self._performers: Mapping[type, Callable[..., None]] = {
            ev.CallChanged: self._changed,
            **dict.fromkeys(get_args(EngineAction), self._order),
            ev.Resolve: self._resolved,
            ev.ProgramEnded: self._program_ended,
            ev.WakeAt: self._wake,
        }

    def at(self, time_s: float, what: Callable[[], None]) -> None:
        """Have something happen at a time."""
        self._asked += 1
        self._pending += 1
        heapq.heappush(self._heap, (time_s, self._asked, what))

    def soon(self, what: Callable[[], None]) -> None:
        """Have something happen at this moment, when all that was posted has been handled."""
        self._soon.append(what)

    def post(self, event: Event) -> None:
        """Hand an event to the scheduler now, after those that were posted before."""
        self._posted.append(event)

    def add_engine(self, engine: SimulatedEngine) -> None:
        """Bring an engine up."""
        self._engines[engine.spec.id] = engine
        self.post(ev.EngineUp(engine.spec))

    def submit(self, event: ev.Submitted, client: SimulatedClient) -> None:
        """Submit a program for a client, which is told of its variables and its end."""
        self._clients[event.program] = client
        self.post(event)

    def stop(self) -> None:
        """Have `run` return after the present event."""
        self._stopped = True

    def run(self) -> None:
        """Go on until `stop`, or until no client waits and nothing is to come but ticks."""
        while not self._stopped:
            if self._posted:
                self._handle(self._posted.popleft())
            elif self._soon:
                self._soon.popleft()()
            elif self._heap and (self._pending or self._clients):
                self.now_s, _, what = heapq.heappop(self._heap)
                if what is None:
                    self._tick()
                else:
                    self._pending -= 1
                    what()
            else:
                return

    def _handle(self, event: Event) -> None:
        self.handled += 1
        if isinstance(event, ev.ClientEvent):
            self.scheduler.check(event)
        actions = self.scheduler.handle(event, self.now_s)
        if self._observe:
            self._observe(self.now_s, event, actions)
        for action in actions:
            perform = self._performers.get(type(action))
            if perform:
                perform(action)

    def _changed(self, action: ev.CallChanged) -> None:
        if action.state is CallState.READY:
            self.ready_s.setdefault(action.key, self.now_s)

    def _order(self, action: EngineAction) -> None:
        self._engines[action.engine].perform(action)

    def _resolved(self, action: ev.Resolve) -> None:
        self._clients[action.program].resolved(action.program, action.name, action.outcome)

    def _program_ended(self, action: ev.ProgramEnded) -> None:
        self._clients.pop(action.program).ended(action.program)

    def _wake(self, action: ev.WakeAt) -> None:
        """The scheduler wants a tick; the time that it said last counts."""
        self._wake_s = action.time_s
        self._asked += 1
        heapq.heappush(self._heap, (action.time_s, self._asked, None))

    def _tick(self) -> None:
        if self.now_s == self._wake_s:
            self._wake_s = math.inf
            self.post(ev.Tick())
