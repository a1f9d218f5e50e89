"""One real server for all tests here."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import httpx
import pytest

from parrot_server.engines.embedded.model_files import DEFAULT_MODEL, prepare
from tests.e2e.real import MAIN, PATIENCE_S, ROOT, Real
from tests.serving import until


@pytest.fixture(scope="session")
def real() -> Iterator[Real]:
    prepare(DEFAULT_MODEL)
    command = [*MAIN, "serve", "--port", "0", "--templates", str(ROOT / "templates")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PARROT_")}
    environment |= {name: os.environ[name] for name in ("PARROT_CACHE",) if name in os.environ}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        with httpx.Client(base_url=url, timeout=PATIENCE_S + 10, trust_env=False) as client:
            until(lambda: client.get("/readyz").status_code == 200, "the engine", PATIENCE_S)
            yield Real(process, url, client)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
