"""The examples run as they are, and stay short."""

from __future__ import annotations

from pathlib import Path

import pytest

from parrot_server.engines.fake import FakeEngine
from tests.cli.conftest import Parrot
from tests.serving import serving

EXAMPLES = Path(__file__).parents[2] / "examples"
CALLS = {"map_reduce.py": 17, "chain.py": 20, "body.json": 3}


def test_every_example_is_tried() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.is_file()} == CALLS.keys()


@pytest.mark.parametrize("name", sorted(CALLS))
def test_an_example_runs(name: str, parrot: Parrot) -> None:
    engine = FakeEngine()
    with serving(engine) as server:
        outcome = parrot("run", EXAMPLES / name, "--url", server.url)
        graph = server.http.get(server.http.get("/v1/programs").json()["programs"][0]["links"]["graph"]).json()
    assert outcome.code == 0, outcome.err
    assert outcome.out.strip()
    assert len(graph["nodes"]) == CALLS[name]
    assert {node["state"] for node in graph["nodes"]} == {"done"}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_under_40_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 40
