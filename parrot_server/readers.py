"""What is told of programs: their logs, and the streams of variables that are not set yet."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from parrot_server.core.events import CallChanged, CallsAdded, Forget, ProgramEnded, Resolve, Submitted
from parrot_server.core.model import Failure, ProgramState
from parrot_server.errors import Refused
from parrot_server.generation import Generation
from parrot_server.metrics import Metrics
from parrot_server.program_log import Entry, ProgramLog, ProgramMoved
from parrot_server.streams import VariableStream

VisibleAction = Resolve | CallChanged | ProgramEnded | Forget
FORGOTTEN = Failure("forgotten", "the program is no longer kept")


@dataclass(slots=True, eq=False)
class _Program:
    """What is kept of one program beside what the scheduler knows."""

    number: int  # in order of submission
    tenant: str
    log: ProgramLog
    functions: dict[str, str] = field(default_factory=dict)  # names that its submissions gave, and ids
    streams: dict[str, VariableStream] = field(default_factory=dict)


class Readers:
    """What is told of all programs that are kept.

    Args:
        log_entries: so many events of a program are kept.
        metrics: where to count what happens.
    """

    def __init__(self, log_entries: int, metrics: Metrics) -> None:
        self._log_entries = log_entries
        self._metrics = metrics
        self._numbers = itertools.count(1)
        self._programs: dict[str, _Program] = {}

    def opened(self, event: Submitted, now_s: float) -> None:
        """A program is there."""
        self._programs[event.program] = _Program(
            next(self._numbers), event.tenant, ProgramLog(now_s, self._log_entries)
        )
        self.moved(event.program, ProgramState.RUNNING if event.closed else ProgramState.OPEN, now_s)
        self.named(event)

    def named(self, event: Submitted | CallsAdded) -> None:
        """A submission named functions."""
        self._programs[event.program].functions.update((spec.name, spec.id) for spec in event.functions)

    def tenant(self, program: str) -> str:
        """Whose program it is. Raises Refused for one that is not there."""
        return self._program(program).tenant

    def functions(self, program: str) -> dict[str, str]:
        """Ids of functions by the names that the program's submissions gave them. Raises Refused."""
        return self._program(program).functions

    def page(self, tenant: str, before: int | None, most: int) -> list[tuple[int, str]]:
        """A tenant's latest programs, newest first, with their numbers; only those before a number."""
        own = (
            (program.number, name)
            for name, program in reversed(self._programs.items())
            if program.tenant == tenant and (before is None or program.number < before)
        )
        return list(itertools.islice(own, most))

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

    def events(self, program: str, cursor: int) -> AsyncGenerator[Entry, None]:
        """What happens in a program, after a cursor. Raises Refused."""
        return self._program(program).log.follow(cursor)

    def _program(self, program: str) -> _Program:
        try:
            return self._programs[program]
        except KeyError:
            raise Refused("unknown_program", f"there is no program {program!r}", status=404) from None
