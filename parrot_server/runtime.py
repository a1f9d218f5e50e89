"""The only asyncio around the scheduler: it takes what happens to it, and does what it decides.

    post(event) -> check -> journal -> handle -> actions

Actions that stay inside (Dispatch, Pause, Keep, ...) are done at once. What others can see (a value, the end of a
program, the reply to a client) waits until the journal has committed the event that it comes from. Streamed text is
provisional and does not wait.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import TracebackType

from parrot_server.cache_salt import CacheSalts
from parrot_server.core.events import (
    Abort,
    Action,
    CallChanged,
    CallsAdded,
    ClientEvent,
    Closed,
    Dispatch,
    Event,
    Forget,
    Keep,
    Pause,
    ProgramEnded,
    Registered,
    Resolve,
    Resume,
    Submitted,
    Tick,
    Unwatched,
    WakeAt,
    Watched,
)
from parrot_server.core.model import ProgramState
from parrot_server.core.scheduler import Scheduler
from parrot_server.core.settings import SchedulerSettings
from parrot_server.core.views import VariableView
from parrot_server.engine_runner import EngineRunner
from parrot_server.engines.base import Engine
from parrot_server.errors import ParrotError, Refused, SetupError
from parrot_server.incident import record_incident
from parrot_server.journal import Journal, NullJournal
from parrot_server.metrics import Metrics
from parrot_server.output_checks import OutputChecks
from parrot_server.owners import Owners
from parrot_server.program_log import Entry
from parrot_server.readers import Readers, VisibleAction
from parrot_server.streams import StreamItem
from parrot_server.timeouts import Timeouts

log = logging.getLogger("parrot")
COMMIT_RETRY_S = 0.5
COMMIT_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """What an operator may set of the runtime.

    Args:
        scheduler: settings of the core.
        timeouts: how long to wait for engines.
        value_bytes: an answer of a model may be so long, in bytes of UTF-8.
        log_entries: so many events of a program are kept for those who look on.
        salt_secret: see `CacheSalts`.
        several_tenants: engines that do not keep tenants' caches apart are not used.
    """

    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    timeouts: Timeouts = field(default_factory=Timeouts)
    value_bytes: int = 4 * 2**20
    log_entries: int = 10_000
    salt_secret: str = field(default="", repr=False)
    several_tenants: bool = False


class Runtime:
    """Runs programs on engines.

        async with Runtime([engine]) as runtime:
            await runtime.post(Submitted(program=runtime.new_program_id(), ...))

    Args:
        engines: what turns prompts into tokens; their ids differ.
        settings: see `RuntimeSettings`.
        journal: where events are written before anybody sees what came of them; None: nowhere.
    """

    def __init__(
        self, engines: Sequence[Engine], settings: RuntimeSettings | None = None, journal: Journal | None = None
    ) -> None:
        self.settings = settings or RuntimeSettings()
        self.scheduler = Scheduler(self.settings.scheduler)
        self.metrics = Metrics()
        self.closing = asyncio.Event()  # readers leave now
        self._engines = engines
        self._journal = journal or NullJournal()
        self._runners: dict[str, EngineRunner] = {}
        self._output_checks = OutputChecks(self._runners.values())
        self.owners = Owners()
        self._salts = CacheSalts(self.settings.salt_secret)
        self._readers = Readers(self.settings.log_entries, self.metrics)
        self._visible: list[VisibleAction | asyncio.Future[None]] = []
        self._commit_wanted = asyncio.Event()
        self._journal_fails = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._epoch_s = 0.0
        self._last_s = 0.0

    # ---- life ------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Runtime:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Begin; engines come up in their own time (`engines_up` waits for them)."""
        loop = asyncio.get_running_loop()
        self._epoch_s = loop.time()
        self._tasks = [loop.create_task(self._commit(), name="journal")]
        settings = self.settings
        for engine in self._engines:
            runner = EngineRunner(
                engine,
                settings.timeouts,
                settings.value_bytes,
                self.metrics,
                self._happened,
                self._readers.more_text,
                settings.several_tenants,
            )
            self._runners[engine.id] = runner
            self._tasks.append(loop.create_task(runner.run(), name=f"engine {engine.id}"))

    async def close(self) -> None:
        """Send readers away, let running calls go, stop the engines and close the journal."""
        self.closing.set()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(runner.close() for runner in self._runners.values()))
        for waiting in self._visible:
            if isinstance(waiting, asyncio.Future):
                waiting.cancel()
        await self._journal.close()

    async def engines_up(self) -> None:
        """Wait until an engine is up. Raises SetupError when this machine lacks something that each of them needs."""
        while not any(runner.spec for runner in self._runners.values()):
            failures = list(self.engine_failures.values())
            if len(failures) == len(self._runners) and all(isinstance(failure, SetupError) for failure in failures):
                raise SetupError("; ".join(str(failure) for failure in failures))
            await asyncio.sleep(0.05)

    @property
    def engine_failures(self) -> dict[str, ParrotError]:
        """Why engines did not come up, by their ids."""
        return {name: runner.failure for name, runner in self._runners.items() if runner.failure}

    # ---- what clients do -------------------------------------------------------------------------------------------

    def new_program_id(self) -> str:
        """An id that nobody can guess."""
        return f"p-{secrets.token_urlsafe(16)}"

    def now_s(self) -> float:
        """The scheduler's time: seconds since the epoch of the journal, never less than before."""
        self._last_s = max(self._last_s, asyncio.get_running_loop().time() - self._epoch_s)
        return self._last_s

    async def post(self, event: ClientEvent) -> None:
        """Let the scheduler take a client's event; returns when it is committed.

        Raises Refused, and then nothing happened.
        """
        self.take(event)
        await self.settled()

    async def check_outputs(self, event: Submitted | CallsAdded | Registered) -> None:
        """Ask the engines whether they can enforce the event's schemas and choices. Raises Refused where none can."""
        await self._output_checks.check(event)

    def take(self, event: ClientEvent) -> None:
        """Let the scheduler take a client's event. It is not committed yet: wait for `settled` before anybody is told.

        Raises Refused, and then nothing happened: also while the journal cannot be written, or what is taken would heap up.
        """
        if self._journal_fails:
            raise Refused(
                "journal_stuck", "the journal cannot be written now: ask again, with the same key", status=503
            )
        self.scheduler.check(event)
        self._take(event)

    async def settled(self) -> None:
        """Wait until what has happened by now is committed: what the scheduler's views say may be told to others.

        Raises Refused (503) when the journal takes too long.
        """
        committed = asyncio.get_running_loop().create_future()
        self._visible.append(committed)
        self._commit_wanted.set()
        try:
            async with asyncio.timeout(COMMIT_PATIENCE_S):
                await committed
        except TimeoutError:
            message = f"the journal could not be written in {COMMIT_PATIENCE_S:g} s: ask again, with the same key"
            raise Refused("journal_stuck", message, status=503) from None

    async def variable(self, program: str, name: str, wait_s: float = 0.0) -> VariableView:
        """A variable, when it is set or after so long. Raises Refused for one that is not there."""
        (view,) = await self.variables(program, [name], wait_s)
        return view

    async def variables(self, program: str, names: Sequence[str], wait_s: float = 0.0) -> list[VariableView]:
        """Variables, when all of them are set or after so long. Raises Refused for one that is not there."""
        unset = [name for name in names if self.scheduler.variable(program, name).outcome is None]
        if unset and wait_s > 0:
            with self.watching(program, unset), suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    for stream in [self._readers.stream(program, name) for name in unset]:
                        await stream.finished()
        views = [self.scheduler.variable(program, name) for name in names]
        await self.settled()
        return views

    @contextmanager
    def watching(self, program: str, names: Sequence[str]) -> Iterator[None]:
        """A reader waits for these variables while the block lasts. Raises Refused for one that is not there."""
        for name in names:
            self.scheduler.check(Watched(program, name))
            self._take(Watched(program, name))
        try:
            yield
        finally:
            with suppress(Refused):  # the program may have been forgotten meanwhile
                for name in names:
                    self.scheduler.check(Unwatched(program, name))
                    self._take(Unwatched(program, name))

    async def stream(
        self, program: str, name: str, attempt: int = 0, offset: int = 0
    ) -> AsyncGenerator[StreamItem, None]:
        """The text of a variable as it comes, then its outcome. Raises Refused for one that is not there.

        Args:
            program, name: the variable.
            attempt, offset: where this reader stopped when it was here before.
        """
        view = self.scheduler.variable(program, name)
        await self.settled()  # what was seen is committed now; what came since is told by the stream
        if view.outcome is not None:
            return self._readers.ended(program, name, view.outcome).follow(attempt, offset)
        return self._watched(program, name, self._readers.stream(program, name).follow(attempt, offset))

    async def events(self, program: str, cursor: int = 0) -> AsyncGenerator[Entry, None]:
        """What happens in a program, after a cursor. Raises Refused for one that is not there."""
        await self.settled()
        self.scheduler.program(program)
        return self._readers.events(program, cursor)

    async def _watched(
        self, program: str, name: str, items: AsyncGenerator[StreamItem, None]
    ) -> AsyncGenerator[StreamItem, None]:
        with self.watching(program, [name]):
            async for item in items:
                yield item

    # ---- what happens ----------------------------------------------------------------------------------------------

    def _happened(self, event: Event) -> None:
        """An engine, or time, did something. A fault of ours here must not take down the task that tells of it."""
        try:
            self._take(event)
        except Exception as error:  # noqa: BLE001 - logged, and what is not touched by it goes on
            record_incident(error, f"handling {type(event).__name__}")

    def _take(self, event: Event) -> None:
        now_s = self.now_s()
        self._journal.append(now_s, event)
        self._note(event, now_s)
        for action in self.scheduler.handle(event, now_s):
            self._do(action)
        self._commit_wanted.set()

    def _note(self, event: Event, now_s: float) -> None:
        """Keep what the scheduler does not: owners and names, and that a program opens and closes (its end it tells)."""
        match event:
            case Registered():
                self.owners.registered(event)
            case Submitted():
                self.owners.submitted(event)
                state = ProgramState.RUNNING if event.closed else ProgramState.OPEN
                self._readers.opened(event.program, state, now_s)
            case CallsAdded():
                self.owners.named(event)
                if event.close:
                    self._readers.moved(event.program, ProgramState.RUNNING, now_s)
            case Closed():
                view = self.scheduler.program(event.program)
                if not view.closed and view.ended_s is None:
                    self._readers.moved(event.program, ProgramState.RUNNING, now_s)

    def _do(self, action: Action) -> None:
        match action:
            case Resolve() | CallChanged() | ProgramEnded() | Forget():
                self._visible.append(action)
            case Dispatch():
                self._runners[action.engine].dispatch(replace(action, salt=self._salts.of(action.salt)))
            case Pause():
                self._runners[action.engine].pause(action)
            case Resume():
                self._runners[action.engine].resume(action)
            case Abort():
                self._runners[action.engine].abort(action)
            case Keep():
                keep = replace(action, salt=self._salts.of(action.salt))
                self._runners[action.engine].keep(keep, max(0.0, action.until_s - self.now_s()))
            case WakeAt():
                self._wake_at(action.time_s)

    def _wake_at(self, time_s: float) -> None:
        """The latest wish counts: the scheduler knows what it has to be woken for."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(self._epoch_s + time_s, self._tick, time_s)

    def _tick(self, time_s: float) -> None:
        self._last_s = max(self._last_s, time_s)  # a timer may fire a clock tick early
        self._happened(Tick())

    async def _commit(self) -> None:
        """Commit what was appended, then show what came of it; many events at once where they come fast."""
        while True:
            await self._commit_wanted.wait()
            self._commit_wanted.clear()
            visible, self._visible = self._visible, []
            while True:
                try:
                    await self._journal.commit()
                    self._journal_fails = False
                    break
                except OSError as error:
                    self._journal_fails = True
                    log.error("the journal cannot be written (%s); trying again", error.strerror)
                    await asyncio.sleep(COMMIT_RETRY_S)
            for seen in visible:
                try:
                    self._show(seen)
                except Exception as error:  # noqa: BLE001 - what the others wait for must still be shown
                    record_incident(error, f"showing {type(seen).__name__}")

    def _show(self, seen: VisibleAction | asyncio.Future[None]) -> None:
        if isinstance(seen, asyncio.Future):
            if not seen.done():
                seen.set_result(None)
            return
        self._readers.show(seen, self.now_s())
        if isinstance(seen, Forget):
            self.owners.forget(seen.program)
