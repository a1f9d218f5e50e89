"""What `parrot serve` is told of the embedded engine's size is what the engine is."""

from __future__ import annotations

import subprocess

import httpx
import pytest

from parrot_server.engines.embedded.model_files import DEFAULT_MODEL, prepare
from tests.e2e.real import MAIN, PATIENCE_S
from tests.serving import until

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]


def test_the_sizes_of_the_command_line_are_the_engine_s() -> None:
    model = str(prepare(DEFAULT_MODEL))
    sizes = ["--threads", "1", "--context-tokens", "1024", "--kv-tokens", "4096"]
    command = [*MAIN, "serve", "--port", "0", "--model", model, *sizes]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        with httpx.Client(base_url=process.stdout.readline().split()[-1], timeout=PATIENCE_S, trust_env=False) as http:
            until(lambda: http.get("/readyz").status_code == 200, "the engine", PATIENCE_S)
            (engine,) = http.get("/v1/engines").json()["engines"]
        process.terminate()
        assert process.wait(30) == 0
    assert (engine["context_tokens"], engine["kv_tokens"]) == (1024, 4096)
