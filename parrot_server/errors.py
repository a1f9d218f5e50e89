"""Every error of the server, in one tree. Foreign errors are mapped to these once, at the edge where they arise.

ParrotError
├── Refused              a request that cannot be taken: becomes a problem+json reply, changes nothing
├── EngineError          an engine did not answer as it should; `fault` says whose fault it is
├── JournalCorrupt       a record of the journal cannot be believed
└── SetupError           the machine lacks something (a package, a model, a free port); the message says what to do
"""

from __future__ import annotations

from enum import StrEnum


class ParrotError(Exception):
    """The root of the tree. Its text is fit to be shown to a user: no prompt text, no traceback, whole characters."""

    def __init__(self, message: str) -> None:
        super().__init__(message.encode(errors="replace").decode())


class Refused(ParrotError):
    """A request that was refused whole.

    Args:
        type: stable machine-readable name, such as `unknown_variable`.
        message: names the thing, the place and the way out.
        status: the HTTP status that says it best.
        call: id of the call at fault, if one is.
        at: where in the request, as a path such as `calls[3].inputs.text`.
    """

    def __init__(self, type: str, message: str, *, status: int = 422, call: str | None = None, at: str = "") -> None:
        super().__init__(message)
        self.type = type
        self.message = str(self)
        self.status = status
        self.call = call
        self.at = at


class Fault(StrEnum):
    """Whose fault an engine's failure is; it decides what happens next."""

    CALL = "call"  # the call's own: never retried, says nothing of the engine's health
    ENGINE = "engine"  # transport, 5xx, a broken stream, a crash: retried, counts against the engine
    BUSY = "busy"  # the engine asks for patience: retried later, does not count against it
    TIMEOUT = "timeout"  # no answer in time: retried, counts against the engine


class EngineError(ParrotError):
    """An engine did not answer as it should.

    Args:
        fault: whose fault it is.
        type: stable name, such as `context_overflow`, `engine_gone`, `stream_broken`.
        message: fit for users; holds no prompt text.
        retry_after_s: what the engine asked for, if it did.
    """

    def __init__(self, fault: Fault, type: str, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.fault = fault
        self.type = type.encode(errors="replace").decode()
        self.message = str(self)
        self.retry_after_s = retry_after_s


class JournalCorrupt(ParrotError):
    """A record of the journal is torn, damaged, missing or of another version; the message says which."""


class SetupError(ParrotError):
    """The machine lacks something that the command needs; the message says what to do."""
