"""A program: the block in which calls are made, and the graph of them on the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from parrot_sdk.draft import Draft
from parrot_sdk.errors import FunctionError, ParrotError, ProgramError
from parrot_sdk.submission import Submission
from parrot_sdk.variable import Variable
from parrot_sdk.wire import GraphReply, NodeReply, ProgramReply

if TYPE_CHECKING:
    from parrot_sdk.client import Client

T = TypeVar("T")
Criterion = Literal["latency", "throughput"] | float
"""What is wanted of a variable; a number is a deadline in seconds from the submission."""

_current: ContextVar[Program | None] = ContextVar("parrot_program", default=None)


def current_program() -> Program:
    """The program in whose block the caller is. Raises ProgramError outside of any."""
    program = _current.get()
    if program is None:
        raise ProgramError("a function was called outside a program: call it inside `with Program(...):`")
    return program


class Program:
    """One user task. Calls of functions inside its block become a graph, and nothing runs at once.

        with Program("book") as program:
            answer = combine(summarize.map(chapters))
        print(answer.get())

    The graph is sent in one request when a value is first needed, or at the end of the block; calls made after that are
    added to the program while it runs. Leaving the block closes the program and does not wait; an exception in it cancels
    the program. `async with` works alike. Each thread and each asyncio task is in blocks of its own.

    Args:
        name: for people to read.
        client: the way to the server; None: the one at PARROT_URL, or without that variable one in this process.
        priority: a weight within the tenant; higher is sooner.
        deadline_s: seconds from the submission in which all should be done.
        budget: what the program may use in all: `total_tokens`, `calls`, `wall_s`.
        failure: `isolate`: what does not read a failed value goes on; `fail_fast`: the first failure ends all.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        client: Client | None = None,
        priority: float | None = None,
        deadline_s: float | None = None,
        budget: Mapping[str, float] | None = None,
        failure: Literal["isolate", "fail_fast"] = "isolate",
    ) -> None:
        if client is None:
            from parrot_sdk.client import default_client

            client = default_client()
        self.name = name
        self.client = client
        self.priority = priority
        self.deadline_s = deadline_s
        self.budget = dict(budget) if budget else None
        self.criteria: dict[str, Criterion] = {}
        self._draft = Draft()
        wishes = {
            "name": name,
            "priority": priority,
            "deadline_s": deadline_s,
            "budget": self.budget,
            "failure": failure,
        }
        said = {field: value for field, value in wishes.items() if value is not None}
        self.submission = Submission(client.connection, self._draft, said)
        self._state: Literal["new", "open", "ended"] = "new"
        self._outer: Program | None = None

    @property
    def id(self) -> str | None:
        """Its name on the server, once it was sent."""
        return self.submission.id

    def __repr__(self) -> str:
        return f"<Program {self.name or ''} {self.id or '(not sent)'}>"

    # ---- the block ----

    def __enter__(self) -> Self:
        self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        if error is None:
            self.client.connection.run(self.submission.send(close=True))
            return
        try:
            self.cancel()
        except ParrotError as second:
            error.add_note(f"The program could not be cancelled: {second}")

    async def __aenter__(self) -> Self:
        self._enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        if error is None:
            await self.client.connection.hand_over(self.submission.send(close=True))
            return
        try:
            await self.client.connection.hand_over(self.submission.cancel())
        except ParrotError as second:
            error.add_note(f"The program could not be cancelled: {second}")

    def _enter(self) -> None:
        if self._state != "new":
            raise ProgramError(f"program {self.name!r} was used already: make a new one for each block")
        self._state = "open"
        self._outer = _current.get()
        _current.set(self)

    def _leave(self) -> None:
        self._state = "ended"
        if _current.get() is self:
            _current.set(self._outer)
        self._outer = None

    # ---- building ----

    def call(
        self,
        name: str,
        id: str,
        body: Mapping[str, Any],
        inputs: Mapping[str, Any],
        holes: tuple[str, ...],
        options: Mapping[str, Any],
    ) -> tuple[str, dict[str, str]]:
        """Add a call of a function. Returns its id, and the variable of each output hole."""
        self._check_open()
        return self._draft.add_function_call(name, id, body, inputs, holes, options)

    def transform(self, source: Variable[Any], transform: Mapping[str, Any], read: Callable[[Any], T]) -> Variable[T]:
        """Add a transform of one of the program's variables."""
        self._check_open()
        call = self._draft.add_transform(transform, self.reference(source)["var"])
        return Variable(self, call, call, read)

    def reference(self, variable: Variable[Any]) -> dict[str, str]:
        """A binding to a variable. Raises FunctionError when it is another program's."""
        if variable.program is not self:
            raise FunctionError(
                f"variable {variable.name!r} belongs to another program: pass its value, which .get() waits for"
            )
        return {"var": variable.name}

    def _check_open(self) -> None:
        if self._state != "open":
            raise ProgramError(f"program {self.name!r} takes no more calls: its block has ended")
        if self.submission.refusal is not None:
            raise self.submission.refusal

    # ---- while it runs. In asyncio code: `await asyncio.to_thread(program.graph)`, and so on ----

    def update(
        self,
        *,
        criteria: Mapping[Variable[Any], Criterion] | None = None,
        priority: float | None = None,
        deadline_s: float | None = None,
        budget: Mapping[str, float] | None = None,
    ) -> None:
        """Say, or change, what is wished of the program; what is left out stays as it is."""
        wished = {self.reference(variable)["var"]: wish for variable, wish in (criteria or {}).items()}
        self.criteria |= wished
        self.priority = self.priority if priority is None else priority
        self.deadline_s = self.deadline_s if deadline_s is None else deadline_s
        self.budget = self.budget if budget is None else dict(budget)
        wishes: dict[str, Any] = {
            "criteria": {
                name: wish if isinstance(wish, str) else {"deadline_s": wish} for name, wish in wished.items()
            },
            "priority": priority,
            "deadline_s": deadline_s,
            "budget": budget,
        }
        said = {field: value for field, value in wishes.items() if value is not None and value != {}}
        self.client.connection.run(self.submission.patch(said))

    def cancel(self) -> None:
        """End the program now: what waits is dropped, what runs is stopped in the engine."""
        self.client.connection.run(self.submission.cancel())

    def info(self) -> ProgramReply:
        """State, counts of calls by state, usage, timing, slowdown."""
        return self.client.connection.run(self.submission.get()).read(ProgramReply)

    def graph(self) -> GraphReply:
        """The calls and what flows between them: state, objective, timing, tokens, engine, and why."""
        return self.client.connection.run(self.submission.get("/graph")).read(GraphReply)

    def explain(self) -> str:
        """One line a call: its state, what it is for, and why it is where it is."""
        nodes = self.graph().nodes
        widths = [max((len(text) for text in column), default=0) for column in zip(*map(_words, nodes), strict=True)]
        lines = []
        for node in nodes:
            cells = (text.ljust(width) for text, width in zip(_words(node), widths, strict=True))
            lines.append("  ".join((*cells, node.why)).rstrip())
        return "\n".join(lines)

    def save_trace(self, path: str | Path) -> None:
        """Write a trace that opens in Perfetto (ui.perfetto.dev) and in chrome://tracing."""
        Path(path).write_bytes(self.client.connection.run(self.submission.get("/trace")).content)


def _words(node: NodeReply) -> tuple[str, ...]:
    return node.id, node.state, node.objective
