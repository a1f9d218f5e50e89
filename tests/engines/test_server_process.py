"""A server that we launched goes when we say so, however it takes that."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from parrot_server.engines.server_process import ServerProcess

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"


def test_one_that_ignores_the_signal_is_killed_even_when_nobody_waits_for_that(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def is_up() -> bool:
        return log.exists() and b"up" in log.read_bytes()

    async def main() -> int:
        server = ServerProcess("engine", "deaf", [sys.executable, "-c", DEAF], log=log)
        await server.bring_up(is_up)
        pid = server.id
        assert pid is not None
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await server.stop()
        return pid

    pid = asyncio.run(main())
    end_s = time.monotonic() + 10
    while not is_gone(pid):
        assert time.monotonic() < end_s
        time.sleep(0.01)
