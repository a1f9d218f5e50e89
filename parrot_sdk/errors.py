"""Every error of the SDK, in one tree. Foreign errors (HTTP, JSON, files) are mapped to these where they arise.

ParrotError
├── TemplateError    a template breaks the grammar; has `line` and `column` (also a ValueError)
├── BodyError        a JSON body breaks the REST contract; has `at`, a path into the body (also a ValueError)
├── FunctionError    a function is declared, or called, in a way that cannot work (also a TypeError)
├── UnresolvedError  a variable without a value was used as if it were text (also a TypeError)
├── ProgramError     a program was used at the wrong time: outside its block, or after its end (also a RuntimeError)
├── WaitTimeout      the value did not come in the time given; the program goes on (also a TimeoutError)
├── StreamReset      the text that was streamed so far is void: the call was tried again and answered otherwise
├── ServerGone       no server answered, or its answer broke off (also a ConnectionError)
├── RequestRefused   the server refused a request; has `type`, `status`, `call` and `at`
└── CallFailed       a variable has an error and no value; has `type`, `call` and `retryable`
    └── CallCancelled    its program was cancelled, or it lost a race
"""

from __future__ import annotations


class ParrotError(Exception):
    """The root of the tree."""


class TemplateError(ParrotError, ValueError):
    """A template breaks the grammar.

    Args:
        message: names the hole and the way out.
        line: counted from 1, in the text that was parsed (in a file: of the file).
        column: counted from 1, in characters.
    """

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(f"{message} (line {line}, column {column})")
        self.message = message
        self.line = line
        self.column = column


class BodyError(ParrotError, ValueError):
    """A JSON body breaks the REST contract.

    Args:
        type: stable machine-readable name: `bad_json`, `unknown_field`, `missing_field` or `bad_value`.
        message: what is wrong, and what is right.
        at: where in the body, as a path such as `calls[3].inputs.text`; empty for the whole.
    """

    def __init__(self, type: str, message: str, at: str = "") -> None:
        super().__init__(f"{at}: {message}" if at else message)
        self.type = type
        self.message = message
        self.at = at


class FunctionError(ParrotError, TypeError):
    """A function is declared, or called, in a way that cannot work."""


class UnresolvedError(ParrotError, TypeError):
    """A variable without a value was used as if it were text: the graph would have lost an edge."""


class ProgramError(ParrotError, RuntimeError):
    """A program was used at the wrong time."""


class WaitTimeout(ParrotError, TimeoutError):
    """The value did not come in the time given. The program goes on; the same wait may be tried again."""


class StreamReset(ParrotError):
    """The text that a stream handed out is void: the call was tried again, and now answers otherwise."""


class ServerGone(ParrotError, ConnectionError):
    """No server answered, or its answer broke off, and trying again did not help."""


class RequestRefused(ParrotError):
    """The server refused a request.

    Args:
        type: stable machine-readable name, such as `unknown_variable`.
        message: what the server said.
        status: the HTTP status.
        call: id of the call at fault, if one is.
        at: where in the request, as a path such as `calls[3].inputs.text`.
    """

    def __init__(self, type: str, message: str, *, status: int, call: str | None = None, at: str = "") -> None:
        super().__init__(message)
        self.type = type
        self.message = message
        self.status = status
        self.call = call
        self.at = at


class CallFailed(ParrotError):
    """A variable has an error and no value.

    Args:
        type: stable machine-readable name, such as `context_overflow`.
        message: what happened, fit for users.
        call: id of the call where it began, if it is known.
        retryable: whether the same program may succeed when it is run again.
        needed_by: id of the call that has no value for it: the same, or one that reads it.
    """

    def __init__(
        self, type: str, message: str, *, call: str | None = None, retryable: bool = False, needed_by: str | None = None
    ) -> None:
        if call is None:
            place = ""
        elif needed_by is None or needed_by == call:
            place = f"call {call}: "
        else:
            place = f"call {needed_by} needs call {call}, which failed: "
        super().__init__(f"{place}{message}")
        self.type = type
        self.message = message
        self.call = call
        self.retryable = retryable


class CallCancelled(CallFailed):
    """The call was cancelled with its program, or it lost a race."""
