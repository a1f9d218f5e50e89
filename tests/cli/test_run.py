"""`parrot run`: bodies and scripts."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from parrot_server.engines.base import Request
from parrot_server.engines.fake import FakeEngine
from parrot_server.errors import EngineError, Fault
from tests.cli.conftest import Parrot
from tests.serving import echo, program, serving


def write(folder: Path, body: Any) -> Path:
    """A body in a file."""
    path = folder / "body.json"
    path.write_text(body if isinstance(body, str) else json.dumps(body), "utf-8")
    return path


def test_the_values_that_no_call_reads_are_printed(tmp_path: Path, parrot: Parrot) -> None:
    body = program(echo("a", "hello", "first"), echo("b", {"var": "first"}, "second"))
    with serving(FakeEngine(script=["one", "two"])) as server:
        outcome = parrot("run", write(tmp_path, body), "--url", server.url)
    assert (outcome.code, outcome.out, outcome.err) == (0, "two\n", "")


def test_several_values_are_named(tmp_path: Path, parrot: Parrot) -> None:
    body = program(echo("a", "hello", "first"), echo("b", "you", "second"))
    with serving(FakeEngine(script=lambda request: "yes")) as server:
        outcome = parrot("run", write(tmp_path, body), "--url", server.url)
    assert sorted(outcome.out.splitlines()) == ["first: yes", "second: yes"]


def _only_hello(request: Request) -> str:
    if "hello" in "".join(piece.text for piece in request.prompt.pieces):
        return "yes"
    raise EngineError(Fault.CALL, "context_overflow", "the prompt is too long")


def test_json_has_values_and_errors_and_a_failure_is_exit_code_1(tmp_path: Path, parrot: Parrot) -> None:
    body = program(echo("a", "hello", "first"), echo("b", "you", "second"))
    with serving(FakeEngine(script=_only_hello)) as server:
        outcome = parrot("run", write(tmp_path, body), "--url", server.url, "--json")
    assert outcome.code == 1
    shown = outcome.json()
    assert shown["values"] == {"first": "yes"}
    assert shown["errors"]["second"]["type"] == "context_overflow"
    assert shown["errors"]["second"]["call"] == "b"
    assert "second" in outcome.err


def test_a_program_that_has_not_ended_is_exit_code_1_and_goes_on(tmp_path: Path, parrot: Parrot) -> None:
    body = program(echo("a", {"var": "later"}, "first"), variables={"later": None})
    with serving() as server:
        outcome = parrot("run", write(tmp_path, body), "--url", server.url, "--wait-s", "0.1", "--json")
        reply = server.http.get(f"/v1/programs/{outcome.json()['id']}").json()
    assert outcome.code == 1
    assert "has not ended after 0." in outcome.err
    assert f"/v1/programs/{reply['id']}/variables/later" in outcome.err
    assert reply["state"] == "running"


@pytest.mark.parametrize(
    ("body", "culprit"),
    [
        ("{", "body.json"),
        ("[]", "body.json"),
        (program(echo("a", "hello", "first", sampling={"y": {"heat": 1}})), "heat"),
        (program(echo("a", {"var": "nix"}, "first")), "nix"),
    ],
    ids=["no JSON", "no object", "unknown field", "unknown variable"],
)
def test_a_bad_body_is_one_line_that_names_the_culprit(body: Any, culprit: str, tmp_path: Path, parrot: Parrot) -> None:
    outcome = parrot("run", write(tmp_path, body), "--engine", "fake")
    assert outcome.code == 1
    assert outcome.err.count("\n") == 1
    assert culprit in outcome.err
    assert not outcome.out


SCRIPT = """
import os, sys
from parrot_sdk import In, Program, function

@function
def say(word: In[str]) -> str:
    "Say {{ word }}"

with Program() as program:
    answer = say(sys.argv[1])
print(os.environ["PARROT_URL"], answer.get())
sys.exit(7)
"""


def test_a_script_runs_on_a_server_of_its_own(tmp_path: Path, parrot: Parrot) -> None:
    path = tmp_path / "say.py"
    path.write_text(SCRIPT)
    outcome = parrot("run", path, "hello", "--engine", "fake")
    assert outcome.code == 7
    assert outcome.out.startswith("http://127.0.0.1:")


def test_a_script_runs_on_the_server_that_is_named(tmp_path: Path, parrot: Parrot) -> None:
    path = tmp_path / "say.py"
    path.write_text(SCRIPT)
    with serving(FakeEngine(script=["hi there"])) as server:
        outcome = parrot("run", "--url", server.url, path, "--", "--option")
        prompt = server.engine.prompts[0]
    assert outcome.out == f"{server.url} hi there\n"
    assert "--option" in prompt


def test_parrot_url_names_the_server_too(tmp_path: Path, parrot: Parrot, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(FakeEngine(script=["from the environment"])) as server:
        monkeypatch.setenv("PARROT_URL", server.url)
        outcome = parrot("run", write(tmp_path, program(echo("a", "hello", "first"))))
    assert outcome.out == "from the environment\n"


def test_an_open_variable_that_nobody_can_set_is_named_at_once(tmp_path: Path, parrot: Parrot) -> None:
    body = program(echo("a", {"var": "later"}, "first"), variables={"later": None}, close=False)
    outcome = parrot("run", write(tmp_path, body), "--engine", "fake")
    assert outcome.code == 1
    assert outcome.err.startswith("parrot: variable 'later' is open")
    assert "--url" in outcome.err


def test_an_open_variable_that_a_call_sets_is_none_of_those(tmp_path: Path, parrot: Parrot) -> None:
    calls = (echo("a", "x", "first"), echo("b", [{"var": "first"}, "y"], "second"))
    outcome = parrot("run", write(tmp_path, program(*calls, variables={"first": None})), "--engine", "fake")
    assert outcome.code == 0


def test_a_program_that_is_left_open_prints_its_values_and_says_so(tmp_path: Path, parrot: Parrot) -> None:
    path = write(tmp_path, program(echo("a", "hello", "first"), close=False))
    outcome = parrot("run", path, "--engine", "fake")
    assert outcome.code == 0
    assert outcome.out.strip()
    assert outcome.err == 'the program was left open ("close": false): it ended with its server\n'
    with serving(FakeEngine(script=["one"])) as server:
        outcome = parrot("run", path, "--url", server.url)
    assert (outcome.code, outcome.out) == (0, "one\n")
    assert server.url in outcome.err


def test_a_program_that_takes_too_long_on_a_server_of_its_own_does_not_go_on(tmp_path: Path, parrot: Parrot) -> None:
    outcome = parrot("run", write(tmp_path, program(echo("a", "hello", "first"))), "--engine", "fake", "--wait-s", "0")
    assert outcome.code == 1
    assert "stopped with its server" in outcome.err
    assert "goes on" not in outcome.err


def test_a_failure_names_its_call(tmp_path: Path, parrot: Parrot) -> None:
    body = program(echo("a", "you", "first"), echo("b", {"var": "first"}, "second"))
    with serving(FakeEngine(script=_only_hello)) as server:
        outcome = parrot("run", write(tmp_path, body), "--url", server.url)
    assert outcome.err.startswith("parrot: second: call a: the prompt is too long")


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("say.py", ["--json"], "--json: it is for .json"),
        ("say.py", ["--wait-s", "3"], "--wait-s: it is for .json"),
        ("body.json", ["extra"], "extra: it is for .py"),
        ("body.json", ["--wait-s", "9999"], "'--wait-s'"),
    ],
)
def test_options_of_the_other_kind_of_file_are_wrong_use(
    name: str, arguments: list[str], said: str, tmp_path: Path, parrot: Parrot
) -> None:
    path = tmp_path / name
    path.write_text("{}")
    outcome = parrot("run", path, *arguments)
    assert outcome.code == 2
    assert said in outcome.err
    assert not outcome.out


def test_a_script_on_a_dead_server_is_one_line(tmp_path: Path, parrot: Parrot) -> None:
    path = tmp_path / "say.py"
    path.write_text(SCRIPT)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    outcome = parrot("run", path, "hello", "--url", f"http://127.0.0.1:{port}")
    assert outcome.code == 1
    assert outcome.err.startswith(
        f"parrot: no server answers at http://127.0.0.1:{port}: start one with `parrot serve`"
    )
    assert outcome.err.count("\n") == 1


def test_a_folder_is_no_file(tmp_path: Path, parrot: Parrot) -> None:
    assert "is a folder" in parrot("run", tmp_path).err
