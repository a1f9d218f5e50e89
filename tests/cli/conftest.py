"""The command line run in this process, and what it printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from parrot_server.cli.app import run


@dataclass(frozen=True)
class Outcome:
    """What one command did."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Its output, which must be JSON and nothing else."""
        return json.loads(self.out)


Parrot = Callable[..., Outcome]


@pytest.fixture
def parrot(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Parrot:
    """Runs `parrot` with these arguments; no server and no engine are named in the environment."""
    for name in ("PARROT_URL", "PARROT_API_KEY", "PARROT_ENGINE"):
        monkeypatch.delenv(name, raising=False)

    def parrot(*arguments: object) -> Outcome:
        capfd.readouterr()
        code = run([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return Outcome(code, out, err)

    return parrot
