"""One engine under care: started again when it dies, asked how it is, and given the calls that were sent to it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Awaitable, Callable
from functools import partial

from parrot_server.core.events import (
    Abort,
    Aborted,
    Dispatch,
    EngineDown,
    EngineEvent,
    EngineLoad,
    EngineUp,
    Failed,
    Finished,
    Keep,
    KvChanged,
    Pause,
    Progress,
    Resume,
    Started,
    Warmed,
    WarmFailed,
)
from parrot_server.core.model import EngineSpec, StepKey, Tier
from parrot_server.engines.base import Engine
from parrot_server.errors import EngineError, Fault, ParrotError
from parrot_server.generation import Generation
from parrot_server.incident import record_incident
from parrot_server.isolation_check import check_isolation
from parrot_server.metrics import Metrics
from parrot_server.timeouts import Timeouts

log = logging.getLogger("parrot")
PROGRESS_S = 0.05
MISSED_ANSWERS = 3  # an engine that is only slow to say how it is, is not dead at once

Attempt = tuple[StepKey, int]


class EngineRunner:
    """Keeps one engine up and runs calls on it.

    Args:
        engine: the engine.
        timeouts: how long to wait for it.
        value_bytes: an answer that grows beyond this fails.
        metrics: where to count.
        report: takes the events that come of it.
        on_text: told of a generation that has more text.
        several_tenants: whether it must keep what tenants asked apart.
    """

    def __init__(
        self,
        engine: Engine,
        timeouts: Timeouts,
        value_bytes: int,
        metrics: Metrics,
        report: Callable[[EngineEvent], None],
        on_text: Callable[[Generation], None],
        several_tenants: bool = False,
    ) -> None:
        self.engine = engine
        self.spec: EngineSpec | None = None
        self.failure: ParrotError | None = None
        self._timeouts = timeouts
        self._value_bytes = value_bytes
        self._metrics = metrics
        self._report = report
        self._on_text = on_text
        self._several_tenants = several_tenants
        self._loop = asyncio.get_running_loop()
        self._rids = (f"{secrets.token_hex(6)}-{number}" for number in itertools.count(1))
        self._running: dict[Attempt, Generation] = {}
        self._sent_s: dict[Attempt, float] = {}
        self._output_tokens: dict[Attempt, int] = {}  # that were counted
        self._progress: dict[Attempt, int] = {}
        self._progress_timer: asyncio.TimerHandle | None = None
        self._progress_told_s = -PROGRESS_S
        self._keeps: dict[str, asyncio.Task[None]] = {}
        self._orders: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue()
        self._suspect = asyncio.Event()
        self._heard_s = 0.0

    # ---- the scheduler's actions -----------------------------------------------------------------------------------

    def dispatch(self, action: Dispatch) -> None:
        """Run a step."""
        attempt = (action.key, action.attempt)
        self._sent_s[attempt] = self._loop.time()
        self._running[attempt] = Generation(
            action,
            self.engine,
            next(self._rids),
            self._timeouts,
            self._value_bytes,
            self._take,
            self._more_text,
        )

    def abort(self, action: Abort) -> None:
        """Let a call go."""
        if generation := self._running.get((action.key, action.attempt)):
            generation.abort()
        else:
            self._loop.call_soon(self._report, Aborted(action.key, action.attempt))

    def pause(self, action: Pause) -> None:
        """Stop decoding a call."""
        if generation := self._running.get((action.key, action.attempt)):
            self._orders.put_nowait(partial(self.engine.pause, generation.rid))

    def resume(self, action: Resume) -> None:
        """Go on with a paused call."""
        if generation := self._running.get((action.key, action.attempt)):
            generation.resumed()
            self._orders.put_nowait(partial(self.engine.resume, generation.rid, action.grant_tokens))

    def keep(self, action: Keep, hold_s: float) -> None:
        """Bring a prefix where it is wanted, after what was asked of the same prefix before."""
        task = self._loop.create_task(self._keep(action, hold_s, self._keeps.get(action.prefix)))
        self._keeps[action.prefix] = task
        task.add_done_callback(lambda done: self._kept(action.prefix, done))

    # ---- supervision -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Start the engine, and start it again whenever it has gone, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._obey())
            pause_s = self._timeouts.backoff_s
            while True:
                if await self._start():
                    pause_s = self._timeouts.backoff_s
                    self._down(await self._watch())
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, self._timeouts.backoff_max_s)

    async def close(self) -> None:
        """Let all calls go and stop the engine."""
        running, keeps = list(self._running.values()), list(self._keeps.values())
        self._drop_all()
        await asyncio.gather(*(generation.gone() for generation in running), *keeps, return_exceptions=True)
        try:
            async with asyncio.timeout(self._timeouts.abort_s):
                await self.engine.close()
        except (EngineError, TimeoutError) as error:
            log.warning("engine %s did not stop cleanly: %s", self.engine.id, type(error).__name__)

    async def _start(self) -> bool:
        try:
            async with asyncio.timeout(self._timeouts.start_s):
                spec = await self.engine.start()
                if self._several_tenants:
                    await check_isolation(self.engine)
        except TimeoutError:
            message = f"engine {self.engine.id} did not come up in {self._timeouts.start_s:g} s"
            self.failure = EngineError(Fault.TIMEOUT, "engine_timeout", message)
        except ParrotError as error:
            self.failure = error
        except Exception as error:  # noqa: BLE001 - one adapter's fault must not take the others down
            incident = record_incident(error, f"starting engine {self.engine.id}")
            message = f"engine {self.engine.id} did not start (incident {incident})"
            self.failure = EngineError(Fault.ENGINE, "internal_error", message)
        else:
            self.spec, self.failure = spec, None
            self._suspect.clear()
            self._metrics.engine_up.labels(self.engine.id).set(1)
            log.info("engine %s is up", self.engine.id)
            self._report(EngineUp(spec))
            return True
        log.warning("engine %s does not start: %s", self.engine.id, self.failure)
        return False

    def _down(self, message: str) -> None:
        log.warning("engine %s is gone: %s", self.engine.id, message)
        self._metrics.engine_up.labels(self.engine.id).set(0)
        self._drop_all()
        self._report(EngineDown(self.engine.id, message))

    def _drop_all(self) -> None:
        for generation in self._running.values():
            generation.drop()
        for task in self._keeps.values():
            task.cancel()
        self._running.clear()
        self._sent_s.clear()
        self._progress.clear()
        self._output_tokens.clear()

    async def _watch(self) -> str:
        """Ask how it is until it is gone; returns why. It is not gone while text comes, however slowly it answers."""
        missed, said = 0, EngineLoad(self.engine.id)
        while True:
            try:
                async with asyncio.timeout(self._timeouts.poll_answer_s):
                    load = await self.engine.load()
            except EngineError as error:
                if error.fault is Fault.ENGINE:
                    return error.message
                missed += 1
            except TimeoutError:
                missed += 1
            except Exception as error:  # noqa: BLE001 - one adapter's fault must not take the others down
                return f"a fault in the server (incident {record_incident(error, f'asking {self.engine.id}')})"
            else:
                missed = 0
                for prefix in load.lost:
                    self._report(KvChanged(prefix, self.engine.id, Tier.NONE, 0))
                now = EngineLoad(self.engine.id, load.running, load.waiting, load.used_tokens, load.cost)
                if now != said:
                    said = now
                    self._report(now)
            silent_s = self._loop.time() - self._heard_s
            if missed >= MISSED_ANSWERS and silent_s > self._timeouts.poll_answer_s:
                return f"no answer to {missed} questions for its load"
            await self._until_suspect_or(self._timeouts.poll_s)

    async def _until_suspect_or(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._suspect.wait()
        except TimeoutError:
            pass
        self._suspect.clear()

    # ---- what comes of the calls -----------------------------------------------------------------------------------

    def _take(self, event: EngineEvent) -> None:
        if (
            isinstance(event, Started)
            and (queue_s := self._running[event.key, event.attempt].engine_queue_s) is not None
        ):
            self._metrics.engine_queue_s.labels(self.engine.id).observe(queue_s)
        if isinstance(event, Finished | Failed | Aborted):
            attempt = (event.key, event.attempt)
            self._running.pop(attempt, None)
            self._sent_s.pop(attempt, None)
            self._progress.pop(attempt, None)
            self._output_tokens.pop(attempt, None)
        if isinstance(event, Finished):
            self._metrics.used(self.engine.id, event.usage)
        elif isinstance(event, Failed):
            self._metrics.failures.labels(self.engine.id, event.fault).inc()
            if event.fault is Fault.ENGINE:
                self._suspect.set()
        self._report(event)

    def _more_text(self, generation: Generation, output_tokens: int) -> None:
        self._heard_s = self._loop.time()
        attempt = (generation.dispatch.key, generation.dispatch.attempt)
        if (sent_s := self._sent_s.pop(attempt, None)) is not None:
            self._metrics.ttft_s.labels(self.engine.id).observe(self._heard_s - sent_s)
        self._metrics.output_tokens.labels(self.engine.id).inc(output_tokens - self._output_tokens.get(attempt, 0))
        self._output_tokens[attempt] = self._progress[attempt] = output_tokens
        self._on_text(generation)
        if self._progress_timer is None:
            wait_s = max(0.0, self._progress_told_s + PROGRESS_S - self._heard_s)
            self._progress_timer = self._loop.call_later(wait_s, self._tell_progress)

    def _tell_progress(self) -> None:
        self._progress_timer = None
        self._progress_told_s = self._loop.time()
        if self._progress:
            tokens = tuple((key, attempt, count) for (key, attempt), count in self._progress.items())
            self._progress.clear()
            self._report(Progress(self.engine.id, tokens))

    # ---- orders and prefixes ---------------------------------------------------------------------------------------

    async def _obey(self) -> None:
        """Give the engine its orders one after another, as they were decided."""
        while True:
            order = await self._orders.get()
            try:
                async with asyncio.timeout(self._timeouts.abort_s):
                    await order()
            except (EngineError, TimeoutError) as error:
                log.warning("engine %s did not pause or resume a call: %s", self.engine.id, type(error).__name__)
                self._suspect.set()
            except Exception as error:  # noqa: BLE001 - one adapter's fault must not take the others down
                record_incident(error, f"pausing or resuming a call on {self.engine.id}")

    async def _keep(self, action: Keep, hold_s: float, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        try:
            async with asyncio.timeout(self._timeouts.keep_s):
                tokens = await self.engine.keep(
                    action.prefix, action.prompt, action.model, action.salt, action.tier, hold_s
                )
        except (EngineError, TimeoutError) as error:
            message = error.message if isinstance(error, EngineError) else "no answer in time"
            if action.tier is Tier.DEVICE:
                self._report(WarmFailed(action.prefix, self.engine.id, message))
            elif action.tier is Tier.HOST:
                self._report(KvChanged(action.prefix, self.engine.id, Tier.HOST, 0))
            return  # what is let go is asked for no more, or has been asked for again since
        if action.tier is Tier.DEVICE:
            self._report(Warmed(action.prefix, self.engine.id, tokens))
        elif action.tier is Tier.HOST:
            self._report(KvChanged(action.prefix, self.engine.id, action.tier, tokens))

    def _kept(self, prefix: str, task: asyncio.Task[None]) -> None:
        if self._keeps.get(prefix) is task:
            del self._keeps[prefix]
        if not task.cancelled() and (error := task.exception()):
            incident = record_incident(error, f"keeping a prefix on {self.engine.id}")
            self._report(WarmFailed(prefix, self.engine.id, f"a fault in the server (incident {incident})"))
