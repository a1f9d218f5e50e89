"""What is told of programs: their logs, and the streams of variables that are not set yet."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from parrot_server.core.events import CallChanged, Forget, ProgramEnded, Resolve
from parrot_server.core.model import Failure, ProgramState, Value
from parrot_server.generation import Generation
from parrot_server.metrics import Metrics
from parrot_server.program_log import Entry, ProgramLog, ProgramMoved
from parrot_server.streams import VariableStream

VisibleAction = Resolve | CallChanged | ProgramEnded | Forget
FORGOTTEN = Failure("forgotten", "the program is no longer kept")


@dataclass(slots=True, eq=False)
class _Program:
    """What readers of one program follow."""

    log: ProgramLog
    streams: dict[str, VariableStream] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)  # at which the streams of set variables ended


class Readers:
    """What is told of all programs that are kept.

    Args:
        log_entries: so many events of a program are kept.
        metrics: where to count what happens.
    """

    def __init__(self, log_entries: int, metrics: Metrics) -> None:
        self._log_entries = log_entries
        self._metrics = metrics
        self._programs: dict[str, _Program] = {}

    def opened(self, program: str, state: ProgramState, now_s: float) -> None:
        """A program is there."""
        self._programs[program] = _Program(ProgramLog(now_s, self._log_entries))
        self.moved(program, state, now_s)

    def moved(self, program: str, state: ProgramState, now_s: float) -> None:
        """A program went to another state."""
        self._programs[program].log.add(now_s, ProgramMoved(state))

    def show(self, seen: VisibleAction, now_s: float) -> None:
        """Let readers see what the scheduler decided."""
        match seen:
            case CallChanged():
                self._metrics.moved(seen.key, seen.state, now_s)
                self._programs[seen.key.program].log.add(now_s, seen)
            case Resolve():
                program = self._programs[seen.program]
                program.log.add(now_s, seen)
                if stream := program.streams.pop(seen.name, None):
                    stream.finish(seen.outcome)
                    program.attempts[seen.name] = stream.attempt
            case ProgramEnded():
                self._metrics.programs.labels(seen.state).inc()
                self.moved(seen.program, seen.state, now_s)
                self._programs[seen.program].log.end()
            case Forget():
                program = self._programs.pop(seen.program)
                program.log.end()
                for stream in program.streams.values():
                    stream.finish(FORGOTTEN)

    def more_text(self, generation: Generation) -> None:
        """A generation has written more; its variable is not set yet."""
        dispatch = generation.dispatch
        self.stream(dispatch.key.program, dispatch.variable).grow(generation.text, dispatch.attempt)

    def stream(self, program: str, name: str) -> VariableStream:
        """The stream of a variable that is not set yet."""
        streams = self._programs[program].streams
        if name not in streams:
            streams[name] = VariableStream()
        return streams[name]

    def ended(self, program: str, name: str, outcome: Value | Failure) -> VariableStream:
        """The stream of a variable that is set: it goes on, for readers that come back, where the live one ended."""
        return VariableStream(self._programs[program].attempts.get(name, 0), outcome)

    def events(self, program: str, cursor: int) -> AsyncGenerator[Entry, None]:
        """What happens in a program, after a cursor."""
        return self._programs[program].log.follow(cursor)
