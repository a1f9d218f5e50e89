"""Real SGLang servers on this CPU: started once for all tests here, stopped at the end.

They need the kit: `tests/sglang_kit/sglang-cpu setup DIR`, and DIR in PARROT_SGLANG_KIT. `make test-sglang` does both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from parrot_server.engines.server_process import free_port
from parrot_server.engines.tokens import PromptTokenizer
from tests.real_servers import RealServer, kit_folder, stopping

SERVE = str(Path(__file__).parents[1] / "sglang_kit" / "sglang-cpu")
FLAGS = ("--enable-session-radix-cache", "--enable-priority-scheduling")
ROOMY = ("--incremental-streaming-output", "--max-total-tokens", "16384", "--max-running-requests", "8")
SMALL = ("--schedule-low-priority-values-first", "--max-total-tokens", "2048", "--max-running-requests", "4")


@dataclass(frozen=True)
class Replicas:
    """Two servers side by side: one with room; one with a pool of 2,048 tokens, lower priorities first, grown text."""

    roomy: str
    small: str
    small_server: RealServer


@pytest.fixture(scope="session")
def kit() -> str:
    return kit_folder("PARROT_SGLANG_KIT", "test-sglang")


@pytest.fixture(scope="session")
def tokenizer(kit: str) -> PromptTokenizer:
    """The model's; read once, since that takes longer than a call."""
    return PromptTokenizer.from_folder(Path(kit) / "model")


@pytest.fixture(scope="session")
def replicas(kit: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    folder = tmp_path_factory.mktemp("sglang")
    servers = []
    for name, flags in (("roomy", ROOMY), ("small", SMALL)):
        port = free_port()
        command = [SERVE, "serve", kit, str(port), *FLAGS, *flags]
        servers.append(RealServer(command, port, "/ready", folder / f"{name}.log"))
    with stopping(servers):
        yield Replicas(servers[0].url, servers[1].url, servers[1])
