"""Real engines for tests: their servers as processes, and the contract's harness for them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.engines.contract import Harness

READY_S = 240.0


class RealServer:
    """A server's process. `url` answers when `wait_ready` has returned.

    Args:
        command: what starts it, in the foreground.
        port: where it listens.
        ready_path: answers 200 when it is ready.
        log: what it says goes there.
    """

    def __init__(self, command: Sequence[str], port: int, ready_path: str, log: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._ready_url = self.url + ready_path
        self._command = command
        self._log = log
        self.start()

    def start(self) -> None:
        """Start its process, the first time or after a `stop`."""
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )

    def wait_ready(self) -> None:
        """Wait until it answers."""
        end_s = time.monotonic() + READY_S
        while time.monotonic() < end_s:
            if self._process.poll() is not None:
                pytest.fail(f"the server ended: {self._said()}")
            try:
                if httpx.get(self._ready_url, trust_env=False).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.25)
        pytest.fail(f"the server was not ready in {READY_S:g} s: {self._said()}")

    def stop(self) -> None:
        """Kill it and all that it started, with no warning."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _said(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]


@contextmanager
def stopping(servers: Sequence[RealServer]) -> Iterator[None]:
    """Servers that were started together; at the end they are gone."""
    try:
        for server in servers:
            server.wait_ready()
        yield
    finally:
        for server in servers:
            server.stop()


def kit_folder(variable: str, target: str) -> str:
    """The folder of a kit that was set up; the test is skipped without one."""
    folder = os.environ.get(variable)
    if not folder:
        pytest.skip(f"{variable} names no folder with a real server: see make {target}")
    return folder


class RealHarness(Harness):
    """A server that runs already; what is done to it must not harm the other tests."""

    can_break = False
    can_go = False
    scripted = False
    control_token = "<|im_end|>"
    patience_s = 60.0

    def __init__(self, url: str) -> None:
        self.url = url
