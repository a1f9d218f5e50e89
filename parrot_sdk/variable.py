"""A semantic variable as the client holds it: a future that other calls may read before it has a value."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from parrot_sdk.errors import CallFailed, UnresolvedError
from parrot_sdk.stream import TextStream
from parrot_sdk.submission import failure_of
from parrot_sdk.wire import TimingReply, UsageReply, VariableReply

if TYPE_CHECKING:
    from parrot_sdk.program import Program

T_co = TypeVar("T_co", covariant=True)


class Variable(Generic[T_co]):
    """The value that a call will have. Pass it to other calls; read it with `get()` or `await`.

    Args:
        program: the program whose variable it is.
        name: its name there.
        call: the id of the call that sets it.
        read: makes the value out of what the server sends.
    """

    def __init__(self, program: Program, name: str, call: str, read: Callable[[Any], T_co]) -> None:
        self._program = program
        self._name = name
        self._call = call
        self._read = read
        self._ended: VariableReply | None = None

    @property
    def program(self) -> Program:
        """The program whose variable it is."""
        return self._program

    @property
    def name(self) -> str:
        """Its name in the program."""
        return self._name

    @property
    def call(self) -> str:
        """The id of the call that sets it."""
        return self._call

    def get(self, timeout_s: float | None = None) -> T_co:
        """Wait for the value.

        Args:
            timeout_s: how long to wait; None: as long as the client's `wait_timeout_s`.

        Raises CallFailed, WaitTimeout, RequestRefused, ServerGone.
        """
        return self._value(self._program.client.connection.run(self._wait(timeout_s)))

    async def aget(self, timeout_s: float | None = None) -> T_co:
        """`get` for asyncio; `await variable` is the same without a time-out."""
        return self._value(await self._program.client.connection.hand_over(self._wait(timeout_s)))

    def __await__(self) -> Generator[Any, None, T_co]:
        return self.aget().__await__()

    def stream(self, on_reset: Callable[[], None] | None = None) -> TextStream:
        """The text piece by piece as it comes: `for text in v.stream()`, or `async for`.

        When a call is tried again after text was streamed, the new text mostly repeats it, which is not seen here. Where
        it differs, StreamReset is raised; with `on_reset`, that is called instead and the text starts again.
        """
        return TextStream(self, on_reset)

    @property
    def done(self) -> bool:
        """Whether there is a value or an error. Asks the server unless it is known."""
        return self._look().state in ("ready", "failed", "cancelled")

    @property
    def error(self) -> CallFailed | None:
        """Why there is no value and will be none; None while that is open, or when there is a value."""
        return failure_of(self._look(), self._call)

    @property
    def usage(self) -> UsageReply | None:
        """Tokens that the call used, as far as known."""
        return self._look().usage

    @property
    def timing(self) -> TimingReply | None:
        """When the call was ready, started and ended, as far as known."""
        return self._look().timing

    def field(self, path: str) -> Variable[str]:
        """The text at a dotted path such as `author.name` of a value that is JSON; taken out by the server."""
        return self._program.transform(self, {"field": path}, str)

    def items(self) -> Variable[list[str]]:
        """The elements of a value that is a JSON list, as a list variable; taken apart by the server."""
        return self._program.transform(self, {"items": True}, list)

    async def _wait(self, timeout_s: float | None) -> VariableReply:
        if self._ended is None:
            self._ended = await self._program.submission.read(self._name, self._patience_s(timeout_s))
        return self._ended

    def _patience_s(self, timeout_s: float | None) -> float:
        return self._program.client.wait_timeout_s if timeout_s is None else timeout_s

    def _look(self) -> VariableReply:
        if self._ended is not None:
            return self._ended
        reply = self._program.client.connection.run(self._program.submission.look(self._name))
        if reply.state in ("ready", "failed", "cancelled"):
            self._ended = reply
        return reply

    def _value(self, reply: VariableReply) -> T_co:
        if failure := failure_of(reply, self._call):
            raise failure
        return self._read(reply.value)

    def __repr__(self) -> str:
        state = self._ended.state if self._ended else "not read yet"
        return (
            f"<Variable {self._name} of program {self._program.name or self._program.id or 'without a name'}: {state}>"
        )

    # What Python does when a variable is taken for its text. Only after a value was read may that pass.

    def __str__(self) -> str:
        return str(self._known("made a string"))

    def __format__(self, spec: str) -> str:
        return format(self._known("formatted into a string"), spec)

    def __bool__(self) -> bool:
        return bool(self._known("tested for truth"))

    def __len__(self) -> int:
        return len(self._known("asked for its length"))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._known("iterated over"))

    def __contains__(self, part: object) -> bool:
        return part in self._known("searched")

    def __add__(self, other: object) -> Any:
        return self._known("added to") + other

    def __radd__(self, other: object) -> Any:
        return other + self._known("added to")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Variable) or not isinstance(other, str | list):
            return self is other
        return bool(self._known("compared") == other)

    __hash__ = object.__hash__

    def _known(self, use: str) -> Any:
        if self._ended is None:
            self._refuse(use)
        return self._value(self._ended)

    def _refuse(self, use: str) -> NoReturn:
        raise UnresolvedError(
            f"variable {self._name!r} has no value yet and cannot be {use}: pass it to a function as it is, "
            "or wait for its value with .get() or await"
        )
