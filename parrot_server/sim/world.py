"""One simulated server with its engine and its clients: put programs in, run, and see what became of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from parrot_server.core import events as ev
from parrot_server.core.events import Action, Event
from parrot_server.core.model import EngineSpec, StepKey
from parrot_server.core.settings import SchedulerSettings
from parrot_server.sim.attempt import Answer, CallRecord
from parrot_server.sim.clients import DeclaringClient, LiveClient, LoopClient, ProgramRecord
from parrot_server.sim.engine import RooflineEngine
from parrot_server.sim.simulation import Simulation
from parrot_server.sim.workload import CallShape, ProgramShape, answer_text, function_of

Observer = Callable[[float, Event, list[Action]], None]


@dataclass(frozen=True, slots=True)
class Setup:
    """How a workload is served.

    Args:
        settings: the scheduler's.
        engine: what the engine is; its `cost` is also what its work truly costs.
        chunk_tokens, progress_s: see `RooflineEngine`.
        declares: clients send whole programs; else they keep the structure, and send a call when they have what it reads.
        rtt_s, queue_s: see `LoopClient`.
    """

    settings: SchedulerSettings
    engine: EngineSpec
    chunk_tokens: int | None = None
    progress_s: float = 0.25
    declares: bool = True
    rtt_s: float = 0.0
    queue_s: float = 0.0


class World:
    """A server, an engine and clients in virtual time.

    Args:
        setup: how they are.
        work: the true work of each program by id, for clairvoyant policies.
        observe: told of each event with its time and the actions that it led to.
    """

    def __init__(self, setup: Setup, work: Mapping[str, float] | None = None, observe: Observer | None = None) -> None:
        self.setup = setup
        self.programs: dict[str, ProgramRecord] = {}
        self.simulation = Simulation(setup.settings, work, observe)
        self.engine = RooflineEngine(
            self.simulation, setup.engine, self._answer, self._ended, setup.chunk_tokens, setup.progress_s
        )
        self._expected: dict[tuple[str, str], tuple[ProgramRecord, Answer]] = {}
        self._functions: set[str] = set()

    def add(
        self,
        shape: ProgramShape,
        then: Callable[[ProgramRecord], None] | None = None,
        declares: bool | None = None,
    ) -> None:
        """Have a program come at its time; `then` is called when it has ended, `declares` overrides the setup."""
        declares = self.setup.declares if declares is None else declares
        if shape.at_s <= self.simulation.now_s:
            self._begin(shape, then, declares)
        else:
            self.simulation.at(shape.at_s, lambda: self._begin(shape, then, declares))

    def run(self) -> None:
        """Run until all programs have ended, or the simulation is stopped. The engine comes up behind what comes first."""
        self.simulation.at(0.0, lambda: self.simulation.add_engine(self.engine))
        self.simulation.run()

    def _begin(self, shape: ProgramShape, then: Callable[[ProgramRecord], None] | None, declares: bool) -> None:
        record = self.programs[shape.id] = ProgramRecord(shape, self.simulation.now_s)
        for call in shape.calls:
            if call.function not in self._functions:
                self._functions.add(call.function)
                self.simulation.post(ev.Registered(function_of(call)))

        def expect(program: str, call: CallShape) -> None:
            answer = Answer(answer_text(shape, call.id), call.output_tokens, call.prefilled)
            self._expected[program, call.id] = (record, answer)

        def end() -> None:
            if then:
                then(record)

        if declares and shape.live:
            LiveClient(self.simulation, record, end).begin(expect)
        elif declares:
            DeclaringClient(self.simulation, record, end).begin(expect)
        else:
            LoopClient(self.simulation, record, end, self.setup.rtt_s, self.setup.queue_s).begin(expect)

    def _answer(self, key: StepKey) -> Answer:
        return self._expected[key.program, key.call][1]

    def _ended(self, record: CallRecord) -> None:
        key = record.key
        program, _ = self._expected[key.program, key.call]
        record.ready_s = self.simulation.ready_s[key]
        program.calls[key.call] = record
