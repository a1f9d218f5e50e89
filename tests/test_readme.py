"""What the README says is so: its code runs, its tables are complete, its files are there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from parrot_sdk.function_file import read_function_file
from parrot_server.api.app import create_app
from parrot_server.config import Settings
from parrot_server.engines.fake import FakeEngine
from parrot_server.runtime import Runtime
from tests.cli.test_app import commands
from tests.serving import serving

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ADDRESS = "http://127.0.0.1:8000"


def blocks(language: str) -> list[str]:
    """The code blocks of a language."""
    return [text for name, text in BLOCK.findall(README) if name == language]


def table(first: str) -> list[list[str]]:
    """The rows of the table whose first column has this name; code marks are taken off."""
    rows = README.partition(f"| {first} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip().strip("`") for cell in row.strip()[1:-1].split("|")] for row in rows]


def test_every_block_is_tried_below() -> None:
    assert {name for name, _ in BLOCK.findall(README)} == {"sh", "python", "json", "markdown", ""}
    assert len(blocks("")) == 1


@pytest.mark.parametrize("number", range(len(blocks("sh"))))
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_shell_blocks_run(number: int) -> None:
    """Targets of make must exist; `parrot serve` is what the test starts; the rest runs as it stands."""
    lines = [line.partition(" #")[0].strip() for line in blocks("sh")[number].splitlines()]
    makefile = (ROOT / "Makefile").read_text()
    rest = []
    for line in lines:
        if line.startswith("make "):
            assert re.search(rf"^{line.removeprefix('make ')}:.*##", makefile, re.MULTILINE), line
        elif not re.fullmatch(r"(\.venv/bin/)?parrot serve( &)?", line):
            rest.append(line)
    if not rest:
        return
    with serving(FakeEngine(script=lambda request: "an answer")) as server:
        script = "set -euo pipefail\n" + "\n".join(rest).replace(ADDRESS, server.url)
        done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert '"value":"an answer"' in done.stdout
    assert "event: value" in done.stdout
    assert '"nodes"' in done.stdout


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_python_blocks_run(number: int, tmp_path: Path) -> None:
    path = tmp_path / "block.py"
    path.write_text(blocks("python")[number])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PARROT_")}
    environment["PARROT_ENGINE"] = "fake"
    command = [sys.executable, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("text", blocks("json"))
def test_bodies_are_taken(text: str) -> None:
    with serving(FakeEngine(script=lambda request: "an answer")) as server:
        reply = server.submit(json.loads(text), wait=20)
    assert reply["values"] == {"answer": "an answer"}


@pytest.mark.parametrize("text", blocks("markdown"))
def test_function_files_are_read(text: str, tmp_path: Path) -> None:
    path = tmp_path / "block.md"
    path.write_text(text)
    function = read_function_file(path)
    assert function.parse().outputs == ("explanation",)


def test_the_routes_are_those_that_there_are() -> None:
    app = create_app(Runtime([FakeEngine()]), Settings(engine="fake"))
    there = {f"{method.upper()} {path}" for path, methods in app.openapi()["paths"].items() for method in methods}
    assert {row[0] for row in table("route")} == there


def test_the_settings_are_those_that_there_are() -> None:
    def shown(value: object) -> str:
        return "" if value in (None, "", ()) else str(value)

    there = {name: shown(field.default) for name, field in Settings.model_fields.items()}
    assert {row[0]: row[1] for row in table("setting")} == there


def test_the_commands_are_those_that_there_are() -> None:
    rows = [row[0].removesuffix(" FILE").removeprefix("parrot ") for row in table("command")]
    assert {tuple(name.split()) for name in rows} == set(commands())


def test_files_and_links_are_there() -> None:
    files = [path for row in table("step") for path in re.findall(r"[\w/]+/[\w.]*", row[1])]
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if not link.startswith("http")]
    assert len(files) > 10
    assert not [path for path in (*files, *links) if not (ROOT / path).exists()]


def test_the_files_that_the_architecture_names_are_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    named = set(re.findall(r"[\w/]+\.py", text))
    roots = (ROOT, ROOT / "parrot_server", ROOT / "parrot_sdk", ROOT / "parrot_server" / "engines")
    assert len(named) > 20
    assert not [name for name in named if not any((root / name).exists() for root in roots)]
