"""What a streamed answer of SGLang's own API comes to, event by event."""

from __future__ import annotations

import json
from collections.abc import Iterator

from parrot_server.core.model import Sampling, Usage
from parrot_server.engines.base import Done, GenerateEvent, Prefill, Taken, Text
from parrot_server.engines.http import DONE, Body, event_of
from parrot_server.engines.http_errors import broken, failure
from parrot_server.engines.stops import StopFilter
from parrot_server.errors import EngineError, Fault


class SGLangAnswer:
    """One answer so far.

    Args:
        engine: the engine's name.
        sampling: for the stop strings. The server stops at them and leaves them in the text; we cut.
        grown_text: each event bears the whole text so far, not only what is new.
    """

    def __init__(self, engine: str, sampling: Sampling, grown_text: bool) -> None:
        self.done: Done | None = None
        self.usage = Usage()
        self._engine = engine
        self._stops = StopFilter(sampling.stop, sampling.keep_stop)
        self._grown_text = grown_text
        self._length = 0
        self._begun = False
        self._finish: Body | None = None

    def take(self, data: str) -> Iterator[GenerateEvent]:
        """Take an event's data; yields what comes of it. Raises EngineError."""
        if data == DONE:
            yield from self._end()
            return
        event = event_of(self._engine, data)
        meta = event.get("meta_info") or {}
        finish = meta.get("finish_reason")
        if isinstance(finish, dict) and finish.get("type") == "abort":
            raise self._aborted(finish)
        self._finish = finish or self._finish
        count = meta.get("completion_tokens") or self.usage.output_tokens
        self.usage = Usage(meta.get("prompt_tokens") or 0, meta.get("cached_tokens") or 0, count)
        if not self._begun:
            self._begun = True
            yield Taken(meta.get("queue_time"))
            yield Prefill(self.usage.prompt_tokens, self.usage.cached_tokens)
        if shown := self._stops.feed(self._new(event.get("text") or "")):
            yield Text(shown, count)

    def _new(self, text: str) -> str:
        if not self._grown_text:
            return text
        new = text[self._length :]
        self._length = max(self._length, len(text))
        return new

    def _end(self) -> Iterator[GenerateEvent]:
        if not isinstance(self._finish, dict):
            raise broken(self._engine, "it gave no reason for its end")
        if rest := self._stops.flush():
            yield Text(rest, self.usage.output_tokens)
        at_limit = self._finish.get("type") == "length" and self._stops.fired is None
        self.done = Done("length" if at_limit else "stop", self.usage, self._stops.fired)
        yield self.done

    def _aborted(self, finish: Body) -> EngineError:
        """The server gave a call up; a status says whose fault that is."""
        status = finish.get("status_code")
        if not isinstance(status, int):
            return EngineError(Fault.ENGINE, "aborted", f"engine {self._engine} gave the call up")
        said = {"message": finish.get("message"), "type": finish.get("err_type")}
        return failure(self._engine, status, json.dumps(said), {})
