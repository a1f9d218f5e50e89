"""One running generation: the task that reads an engine's stream to its end, whatever that end is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

from parrot_server.core.cost import estimate_tokens
from parrot_server.core.events import Aborted, Dispatch, EngineEvent, Failed, Finished, Paused, Prefilled, Started
from parrot_server.core.model import Usage, Value
from parrot_server.engines.base import Done, Engine, GenerateEvent, Prefill, Request, Stalled, Taken, Text
from parrot_server.errors import EngineError, Fault
from parrot_server.incident import record_incident
from parrot_server.streams import GrowingText
from parrot_server.timeouts import Timeouts


class Generation:
    """One attempt of one step in an engine. It reports exactly one end: Finished, Failed or Aborted.

    Args:
        dispatch: what the scheduler wants.
        engine: who does it.
        rid: what the engine knows it by.
        timeouts: how long it may take.
        value_bytes: an answer that grows beyond this fails.
        report: takes what becomes of it.
        on_text: told whenever there is more text, and of the output tokens so far.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        engine: Engine,
        rid: str,
        timeouts: Timeouts,
        value_bytes: int,
        report: Callable[[EngineEvent], None],
        on_text: Callable[[Generation, int], None],
    ) -> None:
        self.dispatch = dispatch
        self.rid = rid
        self.text = GrowingText()
        self.engine_queue_s: float | None = None  # in the engine's own queue, if it says so
        self._engine = engine
        self._timeouts = timeouts
        self._value_bytes = value_bytes
        self._report = report
        self._on_text = on_text
        self._loop = asyncio.get_running_loop()
        self._prefill = Prefill(0, 0)
        self._output_tokens = 0
        self._started = False
        self._ended = False
        self._stalled = False
        self._end_when_stopped: EngineEvent | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._begun = False
        self._task = self._loop.create_task(self._run(), name=f"generation {rid}")
        self._wait_for_more(timeouts.first_token_s)

    # ---- what the runtime asks of it -------------------------------------------------------------------------------

    def abort(self) -> None:
        """Let the engine let go of it; reports Aborted when it has."""
        self._stop(Aborted(self.dispatch.key, self.dispatch.attempt))

    def drop(self) -> None:
        """The engine is gone, or we are going: stop, and report nothing."""
        self._ended = True
        self._stop(None)

    def resumed(self) -> None:
        """It was asked to go on."""
        self._stalled = False
        self._wait_for_more(self._timeouts.first_token_s)

    async def gone(self) -> None:
        """Wait until its task has ended."""
        await asyncio.wait([self._task])

    # ---- its life --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        self._begun = True
        dispatch = self.dispatch
        request = Request(
            rid=self.rid,
            model=dispatch.model,
            prompt=dispatch.prompt,
            sampling=dispatch.sampling,
            salt=dispatch.salt,
            priority=dispatch.priority,
            grant_tokens=dispatch.grant_tokens,
        )
        try:
            async with aclosing(self._engine.generate(request)) as stream:
                async for event in stream:
                    self._take(event)
            self._fail(Fault.ENGINE, "stream_broken", f"engine {dispatch.engine} ended its answer without an end")
        except asyncio.CancelledError:
            if self._end_when_stopped is None and not self._ended:
                raise
        except EngineError as error:
            self._fail(error.fault, error.type, error.message, error.retry_after_s)
        except UnicodeEncodeError:
            self._fail(Fault.ENGINE, "invalid_text", f"engine {dispatch.engine} sent text that is no valid Unicode")
        except Exception as error:  # noqa: BLE001 - whatever an adapter did, the call must end
            incident = record_incident(error, f"running {self.rid} on {dispatch.engine}")
            self._fail(Fault.ENGINE, "internal_error", f"a fault in the server (incident {incident})")
        finally:
            self._disarm()
            if self._end_when_stopped is not None:
                self._end(self._end_when_stopped)

    def _take(self, event: GenerateEvent) -> None:
        if self._ended or self._end_when_stopped is not None:
            return
        key, attempt = self.dispatch.key, self.dispatch.attempt
        if not self._started:
            self._started = True
            self.engine_queue_s = event.queue_s if isinstance(event, Taken) else None
            self._report(Started(key, attempt))
        match event:
            case Prefill():
                self._prefill = event
                self._report(Prefilled(key, attempt, event.prompt_tokens, event.cached_tokens))
            case Text():
                self._wait_for_more(self._timeouts.idle_s)
                self._output_tokens = event.output_tokens
                self.text.append(event.text)
                if self.text.length_bytes > self._value_bytes:
                    self._too_large()
                else:
                    self._on_text(self, event.output_tokens)
            case Stalled():
                self._stalled = True
                self._disarm()
                self._report(Paused(key, attempt, event.output_tokens))
            case Done():
                self._end(self._finished(event))

    def _finished(self, done: Done) -> Finished:
        text = self.text.whole()
        usage = done.usage
        tokens = estimate_tokens(text) if usage.estimated else usage.output_tokens
        return Finished(
            self.dispatch.key, self.dispatch.attempt, Value(text, tokens), usage, finish=done.finish, stop=done.stop
        )

    def _too_large(self) -> None:
        message = f"the answer is larger than the {self._value_bytes} bytes that a value may have"
        self._stop(self._failed(Fault.CALL, "value_too_large", message))

    # ---- its end ---------------------------------------------------------------------------------------------------

    def _stop(self, end: EngineEvent | None) -> None:
        """Cancel the task; what it reports then is `end`, at the latest when the engine has had its time to let go."""
        if self._end_when_stopped is None:
            self._end_when_stopped = end
        self._disarm()
        self._task.cancel()
        # A task that has not begun never will, and the engine has heard nothing of the call.
        wait_s = self._timeouts.abort_s if self._begun else 0.0
        self._patience = self._loop.call_later(wait_s, self._give_up)

    def _give_up(self) -> None:
        self._task.cancel()
        if self._end_when_stopped is not None:
            self._end(self._end_when_stopped)

    def _fail(self, fault: Fault, type: str, message: str, retry_after_s: float | None = None) -> None:
        if self._end_when_stopped is None:
            self._end(self._failed(fault, type, message, retry_after_s))

    def _failed(self, fault: Fault, type: str, message: str, retry_after_s: float | None = None) -> Failed:
        prefill = self._prefill
        usage = Usage(prefill.prompt_tokens, prefill.cached_tokens, self._output_tokens, estimated=True)
        return Failed(self.dispatch.key, self.dispatch.attempt, fault, type, message, retry_after_s, usage)

    def _end(self, end: EngineEvent) -> None:
        if not self._ended:
            self._ended = True
            self.text.given_up = not isinstance(end, Finished)
            self._report(end)

    # ---- time ------------------------------------------------------------------------------------------------------

    def _wait_for_more(self, seconds: float) -> None:
        if self._ended or self._stalled or self._end_when_stopped is not None:
            return
        self._disarm()
        self._patience = self._loop.call_later(seconds, self._out_of_time, seconds)

    def _out_of_time(self, seconds: float) -> None:
        message = f"engine {self.dispatch.engine} gave no text in {seconds:g} s"
        self._stop(self._failed(Fault.TIMEOUT, "engine_timeout", message))

    def _disarm(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
