"""The engine process: reads what is asked from its standard input, and answers on its standard output.

python -m parrot_server.engines.embedded.child

One thread reads, tokenises and compiles grammars; the main one owns the model and runs the steps. The process ends when its
input does, so it never outlives the server.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO

from parrot_server.core.model import Tier
from parrot_server.engines.base import Load
from parrot_server.engines.embedded.intake import Intake
from parrot_server.engines.embedded.kv_cache import KvCache
from parrot_server.engines.embedded.loading import load_engine
from parrot_server.engines.embedded.messages import (
    LENGTH_BYTES,
    Abort,
    Check,
    FromChild,
    Generate,
    Keep,
    NotReady,
    Pause,
    Ping,
    Pong,
    Ready,
    Reports,
    Resume,
    Start,
    ToChild,
    from_child,
    read_to_child,
)
from parrot_server.engines.embedded.sequence import Sequence
from parrot_server.engines.embedded.step_loop import StepLoop
from parrot_server.errors import EngineError, SetupError

_SWITCH_S = 0.0005  # how long the reading thread may keep the main one from its next step
_Work = Callable[[], None]


class Child:
    """Turns messages into work for the step loop, and its reports into messages.

    Args:
        cache, loop: the engine; only the main thread touches them.
        intake: prepares calls, on the reading thread.
        send: sends a message to the server.
    """

    def __init__(self, cache: KvCache, loop: StepLoop, intake: Intake, send: Callable[[FromChild], None]) -> None:
        self._cache = cache
        self._loop = loop
        self._intake = intake
        self._send = send
        self._work: SimpleQueue[_Work] = SimpleQueue()

    def read(self, messages: Iterator[ToChild]) -> None:
        """Prepare what is asked, until there are no more messages; then end the process."""
        for message in messages:
            self._work.put(self._prepared(message))
        os._exit(0)

    def run(self) -> None:
        """Do what was asked, step by step, for ever."""
        while True:
            self._work.get()()
            while True:
                while not self._work.empty():
                    self._work.get()()
                self._report()
                if not self._loop.busy:
                    break
                self._cache.expire(time.monotonic())
                self._loop.step()

    def _report(self) -> None:
        if reports := self._loop.drain_reports():
            self._send(Reports(reports))

    def _prepared(self, message: ToChild) -> _Work:
        """The work that a message means."""
        match message:
            case Generate(request):
                try:
                    return partial(self._loop.add, self._intake.generation(request))
                except EngineError as error:
                    return partial(self._loop.refuse, request.rid, error)
            case Keep():
                return self._prepared_keep(message)
            case Check(rid, sampling):
                try:
                    self._intake.check(sampling)
                except EngineError as error:
                    return partial(self._loop.refuse, rid, error)
                return partial(self._loop.kept, rid, 0)
            case Pause(rid):
                return partial(self._loop.pause, rid)
            case Resume(rid, grant_tokens):
                return partial(self._loop.resume, rid, grant_tokens)
            case Abort(rid):
                return partial(self._loop.abort, rid)
            case Ping():
                return self._pong
            case Start():
                raise AssertionError("started twice")

    def _prepared_keep(self, keep: Keep) -> _Work:
        key = (keep.salt, keep.prefix)
        if keep.tier is Tier.NONE:
            return lambda: self._loop.kept(keep.rid, self._cache.release(key))
        try:
            prefix = self._intake.warm_up(keep)
        except EngineError as error:
            return partial(self._loop.refuse, keep.rid, error)
        if keep.tier is Tier.HOST:
            return lambda: self._loop.kept(keep.rid, self._cache.offload(key, prefix.ids))
        return lambda: self._loop.warm(prefix, partial(self._pin, key, prefix, keep.hold_s))

    def _pin(self, key: tuple[str, str], prefix: Sequence, hold_s: float) -> int:
        return self._cache.pin(key, prefix.ids, time.monotonic() + hold_s)

    def _pong(self) -> None:
        self._cache.expire(time.monotonic())
        load = Load(self._loop.running, self._loop.waiting, self._cache.used_tokens, lost=self._cache.drain_lost())
        self._send(Pong(load))


def _messages(pipe: BinaryIO) -> Iterator[ToChild]:
    while len(head := pipe.read(LENGTH_BYTES)) == LENGTH_BYTES:
        yield read_to_child(pipe.read(int.from_bytes(head, "big")))


def _reserved_output() -> BinaryIO:
    """Standard output for our messages alone: what libraries print goes to standard error."""
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return pipe


def _die(fault: threading.ExceptHookArgs) -> None:
    """A fault of the reading thread ends the process: what the server was told would happen cannot."""
    traceback.print_exception(fault.exc_type, fault.exc_value, fault.exc_traceback)
    os._exit(1)


def main() -> None:
    """Load what the first message says, then serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server says when to stop
    sys.setswitchinterval(_SWITCH_S)
    output = _reserved_output()
    messages = _messages(sys.stdin.buffer)

    def send(message: FromChild) -> None:
        output.write(from_child(message))
        output.flush()

    start = next(messages, None)
    if not isinstance(start, Start):
        return
    try:
        spec, cache, loop, intake = load_engine(start.settings, start.engine, Path(start.settings.folder))
    except SetupError as error:
        send(NotReady(str(error)))
        return
    threading.excepthook = _die
    child = Child(cache, loop, intake, send)
    threading.Thread(target=child.read, args=(messages,), daemon=True).start()
    send(Ready(spec))
    child.run()


if __name__ == "__main__":
    main()
