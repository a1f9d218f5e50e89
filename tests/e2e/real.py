"""The real server on the real model, as a process of its own, for tests."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[2]
MAIN = [sys.executable, "-c", "from parrot_server.cli import main; main()"]
PATIENCE_S = 240.0


@dataclass
class Real:
    """The server's process, and a way to it."""

    process: subprocess.Popen[str]
    url: str
    http: httpx.Client

    def children(self) -> list[int]:
        """Processes that the server started and that run now."""
        stats = [path.read_text() for path in Path("/proc").glob("[0-9]*/stat") if path.exists()]
        fields = [(stat.partition(" ")[0], *stat.rpartition(") ")[2].split()[:2]) for stat in stats]
        return [int(pid) for pid, state, parent in fields if int(parent) == self.process.pid and state != "Z"]

    def value(self, program: str, name: str) -> dict[str, Any]:
        """A variable, when it is set."""
        reply = self.http.get(f"/v1/programs/{program}/variables/{name}", params={"wait": PATIENCE_S})
        assert reply.status_code == 200, reply.text
        found: dict[str, Any] = reply.json()
        return found
