"""Who asks: what handlers need to serve one request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Annotated, TypeVar

from fastapi import Depends, Request
from pydantic import BaseModel

from parrot_sdk.wire import read_body
from parrot_server.api.from_wire import Mapper
from parrot_server.api.idempotency import IdempotencyKeys
from parrot_server.config import Settings
from parrot_server.core.events import Cancelled
from parrot_server.errors import Refused
from parrot_server.runtime import Runtime

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
P = TypeVar("P")
SMALL_BODY_BYTES = 16_384  # parsed in place: in less time than going to a thread takes to matter


class Caller:
    """One request: who makes it, and the server that he makes it to."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.runtime: Runtime = request.app.state.runtime
        self.settings: Settings = request.app.state.settings
        self.keys: IdempotencyKeys = request.app.state.keys
        self.tenant: str = getattr(request.state, "tenant", "")

    async def read(self, model: type[M], map: Callable[[M, Mapper], T], program_id: str | None = None) -> T:
        """The body, checked and mapped to the core's nouns. Raises BodyError and Refused."""
        body = await self.request.body()
        usable = self.runtime.owners.usable(self.tenant, program_id)
        mapper = Mapper(self.settings.value_bytes, self._function_names(program_id), usable)

        def work() -> T:
            return map(read_body(model, body), mapper)

        return work() if len(body) <= SMALL_BODY_BYTES else await asyncio.to_thread(work)

    def check_program(self, program_id: str) -> None:
        """Raise Refused (404) when there is no such program, or it is another tenant's."""
        if self.runtime.owners.tenant(program_id) != self.tenant:
            raise Refused("unknown_program", f"there is no program {program_id!r}", status=404)

    def check_wait(self, wait_s: float) -> None:
        """Raise Refused when a request wants to wait longer than it may."""
        if wait_s > self.settings.wait_s:
            message = f"wait is {wait_s:g}; wait_s allows {self.settings.wait_s:g} seconds: ask again after it"
            raise Refused("limit_exceeded", message, at="query.wait")

    async def while_here(self, work: Coroutine[object, object, T], cancel_with_me: str | None) -> T:
        """Do work that waits, but only while the client is there and the server is not closing.

        Args:
            work: what waits.
            cancel_with_me: the program to be cancelled when the client leaves, if he asked for that.

        Raises Refused when it ended early; a client that has left does not see it.
        """
        waiting = asyncio.ensure_future(work)
        leaving = asyncio.ensure_future(_disconnect(self.request))
        closing = asyncio.ensure_future(self.runtime.closing.wait())
        tasks = (waiting, leaving, closing)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return waiting.result()
            if leaving.done():
                leaving.result()  # raises when the client is there, but sends a body that is no good
                await self.left(cancel_with_me)
            raise Refused("closing", "the server is shutting down: ask again later", status=503)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def left(self, program_id: str | None) -> None:
        """The client has left; cancel the program, if that was wanted."""
        if program_id is not None:
            with suppress(Refused):  # it may be forgotten already
                await self.runtime.post(Cancelled(program_id))

    def _function_names(self, program_id: str | None) -> dict[str, str]:
        owners = self.runtime.owners
        return owners.functions(self.tenant) if program_id is None else owners.names(program_id)


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _caller(request: Request) -> Caller:
    return Caller(request)  # FastAPI would make it in another thread if this were no coroutine


CallerDep = Annotated[Caller, Depends(_caller)]
