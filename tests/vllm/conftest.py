"""A real vLLM on this CPU, started once for all tests here.

It needs the kit: `tests/vllm_kit/vllm-cpu setup DIR`, and DIR in PARROT_VLLM_KIT. `make test-vllm` does both.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from parrot_server.engines.server_process import free_port
from tests.real_servers import RealServer, kit_folder, stopping

SERVE = str(Path(__file__).parents[1] / "vllm_kit" / "vllm-cpu")
FLAGS = ("--max-num-seqs", "4", "--scheduling-policy", "priority", "--enable-prompt-tokens-details")


@pytest.fixture(scope="session")
def kit() -> str:
    return kit_folder("PARROT_VLLM_KIT", "test-vllm")


@pytest.fixture(scope="session")
def vllm(kit: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    server = RealServer(
        [SERVE, "serve", kit, str(port), *FLAGS], port, "/health", tmp_path_factory.mktemp("vllm") / "vllm.log"
    )
    with stopping([server]):
        yield server.url
