"""The embedded engine as the server uses it: every call goes to the engine process and comes back as events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from itertools import count
from typing import TypedDict, Unpack

from parrot_server.core.model import EngineSpec, Prompt, Sampling, Tier
from parrot_server.engines.base import GenerateEvent, Load, Prefill, Request, Stalled, Taken, Text
from parrot_server.engines.embedded.engine_process import EngineProcess
from parrot_server.engines.embedded.messages import Abort, Check, Generate, Keep, Pause, Report, Resume, Start, ToChild
from parrot_server.engines.embedded.model_files import DEFAULT_MODEL, Progress, in_thread, model_name, prepare
from parrot_server.engines.embedded.openvino_runtime import require_packages
from parrot_server.engines.embedded.settings import Mode, Settings
from parrot_server.errors import EngineError, Fault

_LET_GO_S = 60.0
_HUNG_S = 60.0  # a process that says nothing for so long between two steps is replaced


class Options(TypedDict, total=False):
    """The fields of `Settings` that are not about which model it is."""

    threads: int | None
    context_tokens: int | None
    kv_tokens: int | None
    host_tokens: int | None
    chunk_tokens: int
    idle_chunk_tokens: int
    max_running: int
    mode: Mode
    reuse: bool


class EmbeddedEngine:
    """Runs a model on this machine's processor, in a process of its own.

    Args:
        id: the engine's name.
        model: `smollm2-135m` (fetched and prepared at first use), the path of a GGUF file, or of an OpenVINO folder.
        progress: told what is going on while a model is fetched and prepared.
        options: fields of `Settings`.

    Raises:
        ValueError: an option is out of its range.
    """

    def __init__(
        self,
        id: str = "embedded",
        model: str = DEFAULT_MODEL,
        *,
        progress: Progress = lambda what, done: None,
        **options: Unpack[Options],
    ) -> None:
        self.id = id
        self._model = model
        self._settings = Settings(folder="", name=model_name(model), **options)
        self._progress = progress
        self._process: EngineProcess | None = None
        self._spec: EngineSpec | None = None
        self._starting = asyncio.Lock()
        self._streams: dict[str, asyncio.Queue[Report | EngineError]] = {}
        self._keeps = count()
        self._cleaning: set[asyncio.Task[None]] = set()

    @property
    def pid(self) -> int | None:
        """The engine process's id, while there is one."""
        return self._process.pid if self._process is not None and self._process.failure is None else None

    async def start(self) -> EngineSpec:
        """Prepare the model if need be, start the process and load it; a process that is there and answers is kept."""
        async with self._starting:
            if self._spec is not None and await self._answers():
                return self._spec
            await self._end_process()
            require_packages()
            folder = await in_thread(prepare, self._model, self._progress)
            settings = replace(self._settings, folder=str(folder))
            self._process, self._spec = await EngineProcess.spawn(Start(settings, self.id), self._take, self._gone)
            return self._spec

    async def _answers(self) -> bool:
        try:
            async with asyncio.timeout(_HUNG_S):
                await self._alive().load()
        except (EngineError, TimeoutError):
            return False
        return True

    async def generate(self, request: Request) -> AsyncGenerator[GenerateEvent, None]:
        """Generate one output."""
        reports = self._open(request.rid)
        ended = False
        try:
            await self._send(Generate(request))
            while not ended:
                report = await _next(reports)
                ended = report.done is not None
                for event in _events(report):
                    yield event
        except EngineError:
            ended = True
            raise
        finally:
            await self._finish(request.rid, ended)

    async def check(self, sampling: Sampling) -> None:
        """Compile what binds an output, for nothing. Raises EngineError when that cannot be done."""
        await self._kept(Check(f"check-{next(self._keeps)}", sampling))

    async def keep(self, prefix: str, prompt: Prompt | None, model: str, salt: str, tier: Tier, hold_s: float) -> int:
        """Warm and pin a prefix, move it to the host, or let it go; returns how many tokens are there then."""
        return await self._kept(Keep(f"keep-{next(self._keeps)}", prefix, prompt, salt, tier, hold_s))

    async def _kept(self, message: Keep | Check) -> int:
        """Send what is answered with a number of tokens, and wait for that."""
        rid = message.rid
        reports = self._open(rid)
        ended = False
        try:
            await self._send(message)
            while (tokens := (await _next(reports)).kept) is None:
                pass  # it was taken, or is partly there
            ended = True
            return tokens
        except EngineError:
            ended = True
            raise
        finally:
            await self._finish(rid, ended)

    async def pause(self, rid: str) -> None:
        """Stop decoding a call, keep its KV."""
        if rid in self._streams:
            await self._send(Pause(rid))

    async def resume(self, rid: str, grant_tokens: int | None) -> None:
        """Go on with a paused call, also one that the engine paused for want of room."""
        if rid in self._streams:
            await self._send(Resume(rid, grant_tokens))

    async def load(self) -> Load:
        """How busy it is, as the process says between two steps."""
        return await self._alive().load()

    async def close(self) -> None:
        """End the process; calls that still run there fail."""
        await self._end_process()

    async def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.close()
            self._gone(process.failure or _not_running(self.id))
        if self._cleaning:
            await asyncio.gather(*self._cleaning)

    # ---- calls and their reports -----------------------------------------------------------------------------------

    def _alive(self) -> EngineProcess:
        if self._process is None:
            raise _not_running(self.id)
        return self._process

    async def _send(self, message: ToChild) -> None:
        await self._alive().send(message)

    def _open(self, rid: str) -> asyncio.Queue[Report | EngineError]:
        if rid in self._streams:
            raise EngineError(Fault.CALL, "duplicate_rid", f"there is a call {rid} already")
        self._streams[rid] = asyncio.Queue()
        return self._streams[rid]

    def _take(self, report: Report) -> None:
        if (reports := self._streams.get(report.rid)) is not None:
            reports.put_nowait(report)

    def _gone(self, error: EngineError) -> None:
        for reports in self._streams.values():
            reports.put_nowait(error)

    async def _finish(self, rid: str, ended: bool) -> None:
        """Leave nothing of a call: one that has not ended is aborted, and only then forgotten."""
        if ended:
            self._streams.pop(rid, None)
            return
        # In a task of its own: whoever is cancelled here a second time must not leave the call running.
        task = asyncio.create_task(self._let_go(rid))
        self._cleaning.add(task)
        task.add_done_callback(self._cleaning.discard)
        await asyncio.shield(task)

    async def _let_go(self, rid: str) -> None:
        reports = self._streams[rid]
        try:
            await self._send(Abort(rid))
            async with asyncio.timeout(_LET_GO_S):
                while not (await _next(reports, failing=False)).let_go:
                    pass
        except (EngineError, TimeoutError):
            pass  # the process has gone, or will be found to have: the call with it
        finally:
            self._streams.pop(rid, None)


async def _next(reports: asyncio.Queue[Report | EngineError], failing: bool = True) -> Report:
    report = await reports.get()
    if isinstance(report, EngineError):
        raise report
    if failing and report.failure is not None:
        raise EngineError(report.failure.fault, report.failure.type, report.failure.message)
    return report


def _events(report: Report) -> list[GenerateEvent]:
    """What a step did for a call, in the order in which it happened."""
    events: list[GenerateEvent] = []
    if report.taken:
        events.append(Taken())
    if report.prefill is not None:
        events.append(Prefill(*report.prefill))
    if report.text:
        events.append(Text(report.text, report.output_tokens))
    if report.stalled:
        events.append(Stalled(report.output_tokens))
    if report.done is not None:
        events.append(report.done)
    return events


def _not_running(engine: str) -> EngineError:
    return EngineError(Fault.ENGINE, "engine_gone", f"engine {engine} is not running")
