"""What of a program is on the server: it is sent in as few requests as can be, read, and ended. Runs in the client's loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from parrot_sdk.connection import Answer, Connection
from parrot_sdk.draft import Draft
from parrot_sdk.errors import CallCancelled, CallFailed, ParrotError, RequestRefused, ServerGone, WaitTimeout
from parrot_sdk.wire import DeltaReply, ErrorReply, Problem, ProgramReply, ResetReply, VariableReply

POLL_S = 30.0  # how long the server is asked to hold one read
FAILED, EXPIRED = 424, 410


class Submission:
    """One program on the way to its server.

    Args:
        connection: the way.
        draft: where the program's calls gather.
        wishes: name, priority, deadline, budget and criteria, as fields of the first body; may be changed until that is sent.
    """

    def __init__(self, connection: Connection, draft: Draft, wishes: dict[str, Any]) -> None:
        self.id: str | None = None
        self.refusal: ParrotError | None = None
        self._connection = connection
        self._draft = draft
        self._wishes = wishes
        self._over = False  # closed or cancelled
        self._sending = asyncio.Lock()

    async def send(self, close: bool = False) -> None:
        """Send what was added since the last time; with `close`, say that no more will come.

        Raises RequestRefused and ServerGone; then what the request held is lost, and no more is sent.
        """
        sending = asyncio.ensure_future(self._send(close))
        sending.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(sending)  # a reader that gives up must not tear a request that others rely on

    async def read(self, name: str, timeout_s: float) -> VariableReply:
        """Wait until a variable has a value or an error. Raises WaitTimeout."""
        clock = asyncio.get_running_loop().time
        until_s = clock() + timeout_s
        await self._deliver()
        while True:
            left_s = max(0.0, until_s - clock())
            reply = await self._get_variable(name, min(left_s, POLL_S))
            if reply.state not in ("open", "pending"):
                return reply
            if clock() >= until_s:
                raise WaitTimeout(f"variable {name!r} has no value after {timeout_s:g} s; its program goes on")

    async def look(self, name: str) -> VariableReply:
        """A variable as it is now."""
        await self._deliver()
        return await self._get_variable(name, None)

    async def events(self, name: str) -> AsyncGenerator[DeltaReply | ResetReply | VariableReply, None]:
        """A variable's text as it comes; the VariableReply is the last. Raises ServerGone when the server shuts down."""
        await self._deliver()
        async with aclosing(self._connection.events(f"{self._path()}/variables/{name}/stream")) as events:
            async for event, data in events:
                match event:
                    case "delta":
                        yield DeltaReply.model_validate(data)
                    case "reset":
                        yield ResetReply.model_validate(data)
                    case "value":
                        yield VariableReply.model_validate(data)
                        return
                    case "error":
                        problem = Problem.model_validate(data)
                        if problem.type == "closing":
                            raise ServerGone(problem.detail)
                        yield _failed(name, problem)
                        return

    async def patch(self, wishes: Mapping[str, Any]) -> None:
        """Change what is wished: with the first request when that is still to come, else at once."""
        async with self._sending:  # the first request may be on its way, with what was wished before
            if self.id is None and self.refusal is not None:
                raise self.refusal
            if self.id is None:
                criteria = {**self._wishes.get("criteria", {}), **wishes.get("criteria", {})}
                self._wishes |= {**wishes, "criteria": criteria}
                return
        await self.send()  # a criterion may name a variable that the server does not know yet
        await self._connection.request("PATCH", self._path(), wishes)

    async def cancel(self) -> None:
        """End the program now; what was not sent never will be."""
        async with self._sending:
            unsent = self._draft.take()
            if self.id is not None:
                await self._connection.request("DELETE", self._path())
            if self.refusal is None and (unsent or self.id is None):
                self.refusal = CallCancelled("cancelled", "the program was cancelled before this was sent")
            self._over = True

    async def get(self, view: str = "") -> Answer:
        """The program as the server sees it, or one of its views, such as `/graph`."""
        await self._deliver()
        return await self._connection.request("GET", self._path() + view)

    async def _deliver(self) -> None:
        """Send what is there; after a refusal, what was sent before it can still be read."""
        if self.refusal is None:
            await self.send()
        elif self.id is None:
            raise self.refusal

    async def _send(self, close: bool) -> None:
        async with self._sending:
            if self.refusal is not None and not close:
                raise self.refusal
            fields = self._draft.take() if self.refusal is None else {}
            try:
                await self._post(fields, close)
            except ParrotError as error:
                self.refusal = error
                raise
            self._over = self._over or close

    async def _post(self, fields: Mapping[str, Any], close: bool) -> None:
        if self.id is not None and fields:
            await self._connection.request("POST", f"{self._path()}/calls", {**fields, "close": close})
        elif self.id is not None and close and not self._over:
            await self._connection.request("POST", f"{self._path()}/close")
        elif self.id is None and (fields or not close):
            body = {**self._wishes, **fields, "close": close or self._over}
            answer = await self._connection.request("POST", "/v1/programs", body)
            self.id = answer.read(ProgramReply).id

    async def _get_variable(self, name: str, wait_s: float | None) -> VariableReply:
        path = f"{self._path()}/variables/{name}"
        try:
            answer = await self._connection.request("GET", path, wait_s=wait_s, accept=frozenset({FAILED, EXPIRED}))
        except RequestRefused as unknown:
            raise self.refusal or unknown from None
        if answer.status in (FAILED, EXPIRED):
            return _failed(name, answer.read(Problem))
        return answer.read(VariableReply)

    def _path(self) -> str:
        if self.id is None:
            raise ServerGone("the program was not sent")
        return f"/v1/programs/{self.id}"


def _failed(name: str, problem: Problem) -> VariableReply:
    if problem.variable is not None:
        return problem.variable
    error = ErrorReply(
        type=problem.type, message=problem.detail or problem.title, call=problem.call_id, retryable=problem.retryable
    )
    return VariableReply(name=name, state="cancelled" if problem.type == "cancelled" else "failed", error=error)


def failure_of(reply: VariableReply, call: str) -> CallFailed | None:
    """The error of a variable that has one, ready to be raised. `call` is the one that would have set it."""
    if reply.error is None:
        return None
    kind = CallCancelled if reply.state == "cancelled" else CallFailed
    error = reply.error
    return kind(error.type, error.message, call=error.call, retryable=error.retryable, needed_by=call)
