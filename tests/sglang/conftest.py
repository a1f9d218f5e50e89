"""Real SGLang servers on this CPU: started once for all tests here, stopped at the end.

They need the kit: `tests/sglang_kit/sglang-cpu setup DIR`, and DIR in PARROT_SGLANG_KIT. `make test-sglang` does both.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from parrot_server.engines.sglang_launch import free_port

KIT = Path(__file__).parents[1] / "sglang_kit" / "sglang-cpu"
READY_S = 240.0
FLAGS = ("--enable-session-radix-cache", "--enable-priority-scheduling", "--incremental-streaming-output")
ROOMY = (*FLAGS, "--max-total-tokens", "16384", "--max-running-requests", "8")
SMALL = (
    *FLAGS[:2],
    "--schedule-low-priority-values-first",
    "--max-total-tokens",
    "2048",
    "--max-running-requests",
    "4",
)


@dataclass(frozen=True)
class Replicas:
    """Two servers side by side: one with room; one with a pool of 2,048 tokens, lower priorities first, grown text."""

    roomy: str
    small: str


def start_server(kit: str, port: int, flags: tuple[str, ...], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(
            [str(KIT), "serve", kit, str(port), *flags],
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )


def wait_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end_s = time.monotonic() + READY_S
    while time.monotonic() < end_s:
        assert process.poll() is None, f"SGLang ended: {log.read_text(errors='replace')[-2000:]}"
        try:
            if httpx.get(f"http://127.0.0.1:{port}/ready", trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.25)
    pytest.fail(f"SGLang was not ready in {READY_S:g} s: {log.read_text(errors='replace')[-2000:]}")


@pytest.fixture(scope="session")
def kit() -> str:
    folder = os.environ.get("PARROT_SGLANG_KIT")
    if not folder:
        pytest.skip("PARROT_SGLANG_KIT names no folder with a real SGLang: see make test-sglang")
    return folder


@pytest.fixture(scope="session")
def replicas(kit: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    folder = tmp_path_factory.mktemp("sglang")
    servers = []
    try:
        for name, flags in (("roomy", ROOMY), ("small", SMALL)):
            port, log = free_port(), folder / f"{name}.log"
            servers.append((start_server(kit, port, flags, log), port, log))
        for server in servers:
            wait_ready(*server)
        yield Replicas(*(f"http://127.0.0.1:{port}" for _, port, _ in servers))
    finally:
        for process, _, _ in servers:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
