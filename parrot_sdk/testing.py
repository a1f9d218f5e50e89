"""For tests of programs: the whole server in this process, a scripted engine instead of a model, and a clock that does not wait.

    def test_book():
        with ScriptedServer(["first", "second", "both"]) as server, server.program() as program:
            answer = combine(summarize.map(["one", "two"]))
        assert answer.get() == "both"
        assert "first" in server.engine.prompts[-1]

Time stands still while the test thinks. It passes only while something is waited for, and then at once: an answer that takes an hour
takes no time, and all takes the same steps each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import anyio
import anyio.to_thread

from parrot_sdk.asgi import AppTransport
from parrot_sdk.client import Client
from parrot_sdk.connection import Connection
from parrot_sdk.errors import ProgramError
from parrot_sdk.loop_thread import LoopThread
from parrot_sdk.program import Program
from parrot_server.api.app import create_app
from parrot_server.clock import VirtualLoop
from parrot_server.config import Settings
from parrot_server.engines.fake import Abilities, FakeEngine
from parrot_server.engines.fake_script import Answer, Script, prompt_text
from parrot_server.runtime import Runtime

__all__ = ["Answer", "FakeEngine", "ScriptedServer", "prompt_text"]

T = TypeVar("T")


class ScriptedServer:
    """A server, its scripted engine, and a client for it.

    Args:
        script: what the engine answers: a function of the request, or a list from which each call that starts takes the first; see
            `Answer` for answers that take time, break off or never end. None: answers are made from the prompt.
        token_s: seconds for each output token.
        settings: of the server, such as `calls_per_program`.
        abilities: what the engine can do and hold, such as `max_running` or `context_tokens`.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        token_s: float = 0.0,
        settings: dict[str, Any] | None = None,
        **abilities: Unpack[Abilities],
    ) -> None:
        self.engine = FakeEngine("fake", script, token_s=token_s, **abilities)
        self._thread = _ClockThread()
        checked = Settings(**{"api_keys": {}, "engine": "fake", **(settings or {})})
        self._runtime = Runtime([self.engine], checked.runtime())
        self._thread.at_end(self._runtime.close)
        self._thread.submit(self._start()).result()
        transport = AppTransport(create_app(self._runtime, checked))
        connection = Connection("http://parrot", None, 60.0, 10.0, thread=self._thread, transport=transport)
        self.client = Client("http://parrot", connection=connection)

    @property
    def now_s(self) -> float:
        """What the server's clock says."""
        return self._thread.loop.time()

    def advance(self, seconds: float) -> None:
        """Let time pass, and all happen that happens in it."""
        self._thread.submit(asyncio.sleep(seconds)).result()

    def program(self, name: str | None = None, **wishes: Any) -> Program:
        """A new program on this server."""
        return self.client.program(name, **wishes)

    def close(self) -> None:
        """Stop client, server and engine. May be called twice."""
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _start(self) -> None:
        await self._runtime.start()
        await self._runtime.engines_up()


class _ClockThread(LoopThread):
    """A loop thread on a virtual clock, which stands still while nobody waits for any work in it."""

    def __init__(self) -> None:
        self._awaited = 0  # only changed in the loop, so that no work can come between a look at it and what follows
        self._limiter: anyio.CapacityLimiter | None = None
        self.loop = VirtualLoop(stands_still=lambda: not self._awaited or self._threads_work())
        super().__init__(self.loop)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Do this in the loop; time passes until it is done."""
        try:
            return super().submit(self._let_time_pass(work))
        except ProgramError:
            work.close()
            raise

    def _threads_work(self) -> bool:
        """Whether another thread does something for a task in the loop, which takes no virtual time."""
        return self._limiter is not None and self._limiter.borrowed_tokens > 0

    async def _let_time_pass(self, work: Coroutine[Any, Any, T]) -> T:
        self._awaited += 1
        self._limiter = anyio.to_thread.current_default_thread_limiter()
        try:
            return await work
        finally:
            self._awaited -= 1

    async def _end(self) -> None:
        await self._let_time_pass(super()._end())
