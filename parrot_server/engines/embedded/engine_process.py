"""The engine process seen from the server: start it, talk to it, notice that it has gone, end it."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections import deque
from collections.abc import Callable

from pydantic_core import PydanticSerializationError

from parrot_server.core.model import EngineSpec
from parrot_server.engines.base import Load
from parrot_server.engines.embedded.messages import (
    LENGTH_BYTES,
    FromChild,
    NotReady,
    Ping,
    Pong,
    Ready,
    Report,
    Reports,
    Start,
    ToChild,
    read_from_child,
    to_child,
)
from parrot_server.errors import EngineError, Fault, SetupError

log = logging.getLogger("parrot")
_COMMAND = (sys.executable, "-m", "parrot_server.engines.embedded.child")
_SAID_BYTES = 8_192  # of its last words
_CLOSE_S = 5.0


class EngineProcess:
    """One life of the engine process. Make one with `spawn`.

    Args:
        engine: the engine's id, for messages.
        process: what was started.
        on_report: takes what the process says of calls.
        on_gone: called once, when the process has ended by itself.
    """

    def __init__(
        self,
        engine: str,
        process: asyncio.subprocess.Process,
        on_report: Callable[[Report], None],
        on_gone: Callable[[EngineError], None],
    ) -> None:
        self._engine = engine
        self._process = process
        self._on_report = on_report
        self._on_gone = on_gone
        self._pongs: deque[asyncio.Future[Load]] = deque()
        self._said = b""
        self._tasks: list[asyncio.Task[None]] = []
        self.failure: EngineError | None = None

    @classmethod
    async def spawn(
        cls, start: Start, on_report: Callable[[Report], None], on_gone: Callable[[EngineError], None]
    ) -> tuple[EngineProcess, EngineSpec]:
        """Start a process and wait until its model is loaded.

        Raises:
            SetupError: the process says what is missing.
            EngineError: it ended without saying why.
        """
        pipe = asyncio.subprocess.PIPE
        # One piece of text at a time is tokenised, so the library's own threads would only disturb the computation.
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
        process = await asyncio.create_subprocess_exec(
            *_COMMAND,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env=environment,
            start_new_session=True,  # Ctrl-C is for us, who say when it is to stop
        )
        life = cls(start.engine, process, on_report, on_gone)
        try:
            life._tasks.append(asyncio.create_task(life._read_errors()))
            await life.send(start)
            message = await life._receive()
            if isinstance(message, NotReady):
                raise SetupError(message.message)
            if not isinstance(message, Ready):
                await life._tasks[0]  # its last words
                said = f"; it said: {words[-1]}" if (words := life._last_words()) else ""
                ended = await life._ended()
                raise EngineError(ended.fault, ended.type, f"{ended.message} while it loaded the model{said}")
        except BaseException:
            if process.returncode is None:
                process.kill()  # it would first load its model to the end
            await life.close()
            raise
        life._tasks.append(asyncio.create_task(life._read()))
        return life, message.spec

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    async def send(self, message: ToChild) -> None:
        """Send a message. Raises EngineError when the process has gone, or, the call's fault, when a text is no Unicode."""
        assert self._process.stdin is not None
        if self.failure is not None:
            raise self.failure
        try:
            frame = to_child(message)
        except PydanticSerializationError:
            raise EngineError(Fault.CALL, "invalid_text", "the prompt holds half a character (a surrogate)") from None
        try:
            self._process.stdin.write(frame)
            await self._process.stdin.drain()
        except (ConnectionError, RuntimeError):
            raise await self._ended() from None

    async def load(self) -> Load:
        """Ask how busy it is; answered between two steps. Raises EngineError when the process has gone."""
        pong: asyncio.Future[Load] = asyncio.get_running_loop().create_future()
        self._pongs.append(pong)
        await self.send(Ping())
        return await pong

    async def close(self) -> None:
        """End the process, if it has not ended, and everything that belongs to it."""
        self.failure = self.failure or _gone(self._engine, "was stopped")
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._fail_pongs(self.failure)

    async def _read(self) -> None:
        while (message := await self._receive()) is not None:
            if isinstance(message, Reports):
                for report in message.reports:
                    self._on_report(report)
            elif isinstance(message, Pong) and self._pongs:
                pong = self._pongs.popleft()
                if not pong.done():
                    pong.set_result(message.load)
        error = await self._ended()
        self._fail_pongs(error)
        self._on_gone(error)

    async def _receive(self) -> FromChild | None:
        """The next message; None when there will be no more."""
        assert self._process.stdout is not None
        try:
            head = await self._process.stdout.readexactly(LENGTH_BYTES)
            return read_from_child(await self._process.stdout.readexactly(int.from_bytes(head, "big")))
        except asyncio.IncompleteReadError:
            return None

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        while piece := await self._process.stderr.read(_SAID_BYTES):  # not by lines: one may have no end
            self._said = (self._said + piece)[-_SAID_BYTES:]

    def _last_words(self) -> list[str]:
        return self._said.decode("utf-8", "replace").rstrip().splitlines()

    async def _ended(self) -> EngineError:
        """Why it ended. Its last words go to the log; they hold no prompt, for it prints none."""
        code = await self._process.wait()
        if self.failure is None:
            self.failure = _gone(self._engine, f"ended with code {code}")
            log.warning("engine process %s (%d) ended with code %d", self._engine, self.pid, code)
            for line in self._last_words():
                log.debug("engine process %s said: %s", self._engine, line)
        return self.failure

    def _fail_pongs(self, error: EngineError) -> None:
        while self._pongs:
            pong = self._pongs.popleft()
            if not pong.done():
                pong.set_exception(error)


def _gone(engine: str, how: str) -> EngineError:
    return EngineError(Fault.ENGINE, "engine_gone", f"the process of engine {engine} {how}")
