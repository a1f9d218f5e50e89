"""Clients of the simulated server: one declares its whole program, one lets it grow, and one keeps the structure to itself.

The last sends a finished prompt for each call when it has what the call reads: over the network, and to the end of the line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from parrot_server.core import events as ev
from parrot_server.core.model import Failure, Ref, Value
from parrot_server.sim.attempt import CallRecord
from parrot_server.sim.simulation import Simulation
from parrot_server.sim.workload import CallShape, ProgramShape, added, declared, opened, own_value, undeclared

Expect = Callable[[str, CallShape], None]  # the id of a program at the server, and a call of it


@dataclass(slots=True)
class ProgramRecord:
    """What became of a program. `edges_s` is what its client added between its calls, `attained_token_s` the service it was charged."""

    shape: ProgramShape
    submitted_s: float
    ended_s: float | None = None
    edges_s: float = 0.0
    attained_token_s: float = 0.0
    failure: Failure | None = None
    calls: dict[str, CallRecord] = field(default_factory=dict)

    @property
    def completion_s(self) -> float:
        """From its submit to its end."""
        assert self.ended_s is not None, f"{self.shape.id} has not ended"
        return self.ended_s - self.submitted_s


class _Client:
    """What both have in common: they know which calls still miss what."""

    def __init__(self, simulation: Simulation, record: ProgramRecord, then: Callable[[], None]) -> None:
        self.simulation = simulation
        self.record = record
        self.shape = record.shape
        self._then = then
        self._missing = {call.id: len(call.waits_for) for call in self.shape.calls}
        self._readers: dict[str, list[CallShape]] = {}
        for call in self.shape.calls:
            for name in call.waits_for:
                self._readers.setdefault(name, []).append(call)

    def ready_after(self, call_id: str) -> list[CallShape]:
        """Calls that have all they wait for now that this one has its answer."""
        ready = []
        for call in self._readers.get(call_id, ()):
            self._missing[call.id] -= 1
            if self._missing[call.id] == 0:
                ready.append(call)
        return ready

    def charge(self, program: str) -> None:
        """Note what the server charged."""
        self.record.attained_token_s += self.simulation.scheduler.program(program).attained_token_s

    def end(self) -> None:
        """All is there."""
        self.record.ended_s = self.simulation.now_s
        self._then()


class DeclaringClient(_Client):
    """Sends its whole program, then only brings what its tools return."""

    def begin(self, expect: Expect) -> None:
        """Submit."""
        for call in self.shape.calls:
            expect(self.shape.id, call)
        self.simulation.submit(declared(self.shape), self)
        for call in self.shape.calls:
            if call.stall_s and not call.waits_for:
                self._bring(call)

    def resolved(self, program: str, name: str, outcome: Value | Failure) -> None:
        """An answer is there: tools that waited for it begin."""
        if isinstance(outcome, Failure):
            self.record.failure = self.record.failure or outcome
            return
        for call in self.ready_after(name):
            if call.stall_s:
                self._bring(call)

    def ended(self, program: str) -> None:
        """The program has ended."""
        self.charge(program)
        self.end()

    def _bring(self, call: CallShape) -> None:
        value = ev.VariableSet(self.shape.id, f"{call.id}?", own_value(self.shape, call))
        self.simulation.at(self.simulation.now_s + call.stall_s, lambda: self.simulation.post(value))


class LiveClient(_Client):
    """Opens its program, then adds each call when it has what the call reads, without a way to go."""

    def begin(self, expect: Expect) -> None:
        """Open, with the calls that wait for nothing."""
        self._expect = expect
        self._left = len(self.shape.calls)
        self._parts: dict[str, tuple[Value | Ref, ...]] = {}
        self.simulation.submit(opened(self.shape), self)
        for call in self.shape.calls:
            if not call.waits_for:
                self._add_after(call.stall_s, call)

    def resolved(self, program: str, name: str, outcome: Value | Failure) -> None:
        """An answer is there: the calls that it leads to can be said."""
        if isinstance(outcome, Failure):
            self.record.failure = self.record.failure or outcome
            self.simulation.post(ev.Closed(self.shape.id))
            return
        for call in self.ready_after(name):
            self._add_after(call.stall_s, call)

    def ended(self, program: str) -> None:
        """The program has ended."""
        self.charge(program)
        self.end()

    def _add_after(self, pause_s: float, call: CallShape) -> None:
        if pause_s:
            self.simulation.at(self.simulation.now_s + pause_s, lambda: self._add(call))
        else:
            self._add(call)

    def _add(self, call: CallShape) -> None:
        self._left -= 1
        self._expect(self.shape.id, call)
        self.simulation.post(added(self.shape, call, self._parts, close=not self._left))


class LoopClient(_Client):
    """Sends one call at a time, when it has what the call reads.

    Args:
        rtt_s: the way to the client and back.
        queue_s: waiting in line again.
    """

    def __init__(
        self, simulation: Simulation, record: ProgramRecord, then: Callable[[], None], rtt_s: float, queue_s: float
    ) -> None:
        super().__init__(simulation, record, then)
        self._edge_s = rtt_s + queue_s
        self._open = len(self.shape.calls)
        self._parts: dict[str, tuple[Value, ...]] = {}

    def begin(self, expect: Expect) -> None:
        """Send the calls that wait for nothing."""
        self._expect = expect
        for call in self.shape.calls:
            if not call.waits_for:
                self._send_after(call.stall_s, call)

    def resolved(self, program: str, name: str, outcome: Value | Failure) -> None:
        """An answer is on its way to the client."""
        if isinstance(outcome, Failure):
            self.record.failure = self.record.failure or outcome
            return
        for call in self.ready_after(name):
            self.record.edges_s += self._edge_s
            self._send_after(self._edge_s + call.stall_s, call)

    def ended(self, program: str) -> None:
        """One call has ended."""
        self.charge(program)
        self._open -= 1
        if not self._open or self.record.failure:
            self.end()

    def _send_after(self, pause_s: float, call: CallShape) -> None:
        self.simulation.at(self.simulation.now_s + pause_s, lambda: self._send(call))

    def _send(self, call: CallShape) -> None:
        submitted = undeclared(self.shape, call, self._parts)
        self._expect(submitted.program, call)
        self.simulation.submit(submitted, self)
