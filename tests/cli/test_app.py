"""The command line as a whole: help, errors, and where things are printed."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer.main

from parrot_sdk import Client
from parrot_server.cli.app import app
from parrot_server.config import unknown_settings
from parrot_server.engines.fake import FakeEngine
from parrot_server.engines.fake_script import Answer
from tests.cli.conftest import Parrot
from tests.serving import serving, until

MAIN = [sys.executable, "-c", "from parrot_server.cli import main; main()"]


@contextmanager
def started(*arguments: str, **pipes: Any) -> Iterator[subprocess.Popen[Any]]:
    """`parrot` in a process of its own, which feels Ctrl-C as under a shell, and does not outlive the test."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | pipes
    feel = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # what starts the tests may ignore it
    with subprocess.Popen([*MAIN, *arguments], preexec_fn=feel, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def commands() -> list[tuple[str, ...]]:
    """The names of all commands, as they are typed."""
    found: list[tuple[str, ...]] = []
    todo: list[tuple[tuple[str, ...], object]] = [((), typer.main.get_command(app))]
    while todo:
        names, command = todo.pop()
        inner = getattr(command, "commands", None)
        if inner is None:
            found.append(names)
        else:
            todo += [((*names, name), one) for name, one in inner.items()]
    return sorted(found)


def test_all_commands_are_there() -> None:
    expected = {("serve",), ("run",), ("demo", "map-reduce"), ("demo", "chain"), ("models", "pull"), ("models", "list")}
    assert expected | {("doctor",)} <= set(commands())


@pytest.mark.parametrize("names", [(), *commands()], ids=" ".join)
def test_help_has_examples_of_the_command_itself(names: tuple[str, ...], parrot: Parrot) -> None:
    outcome = parrot(*names, "--help")
    assert outcome.code == 0
    examples = outcome.out.partition("Example")[2]
    assert f"  {' '.join(('parrot', *names))}" in examples
    assert not outcome.err


def test_without_arguments_the_help_is_shown(parrot: Parrot) -> None:
    assert parrot() == parrot("--help")


def test_version(parrot: Parrot) -> None:
    assert re.fullmatch(r"parrot \d+\.\d+\.\d+\S*\n", parrot("--version").out)


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (["nix"], "nix"),
        (["demo"], "demo"),
        (["serve", "--prt", "1"], "--prt"),
        (["serve", "--port", "x"], "--port"),
        (["serve", "--engine", "gpu"], "gpu"),
        (["demo", "map-reduce", "--maps", "0"], "--maps"),
        (["run"], "FILE"),
    ],
    ids=str,
)
def test_wrong_use_is_one_line_and_exit_code_2(arguments: list[str], culprit: str, parrot: Parrot) -> None:
    outcome = parrot(*arguments)
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert culprit.lower() in outcome.err.lower()
    assert "--help" in outcome.err
    assert not outcome.out


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (["serve", "--port", "99999"], "--port"),
        (["serve", "--port", "0", "--engine", "fake", "--policy", "nix"], "'nix'"),
        (["serve", "--port", "0", "--engine", "fake", "--templates", "/nix"], "/nix"),
        (["serve", "--port", "0", "--engine", "none"], "no engine"),
        (["run", "nix.py"], "nix.py"),
        (["run", "README.md"], "README.md"),
        (["demo", "map-reduce", "--engine", "fake", "--docs", "/nix"], "/nix"),
        (["demo", "map-reduce", "--engine", "fake", "--maps", "17"], "17"),
        (["demo", "chain", "--url", "ftp://nix"], "ftp://nix"),
        (["models", "pull", "nix"], "'nix'"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_one_line_and_exit_code_1(arguments: list[str], culprit: str, parrot: Parrot) -> None:
    outcome = parrot(*arguments)
    assert outcome.code == 1
    assert outcome.err.count("\n") == 1
    assert culprit in outcome.err
    assert not outcome.out


def test_a_server_stops_when_its_engine_never_can_come_up(parrot: Parrot) -> None:
    outcome = parrot("serve", "--port", "0", "--model", "/nix.gguf")
    assert outcome.code == 1
    assert "parrot: there is no model '/nix.gguf'" in outcome.err


def test_an_engine_that_never_can_come_up_is_told_once() -> None:
    command = [*MAIN, "run", "examples/body.json", "--model", "/nix.gguf"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("parrot: there is no model '/nix.gguf'")


def test_a_bad_variable_is_named_as_one(parrot: Parrot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARROT_PORT", "abc")
    outcome = parrot("serve")
    assert outcome.code == 1
    assert "PARROT_PORT" in outcome.err
    assert "'abc'" in outcome.err


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("PARROT_PROT", "PARROT_PROT is no setting: did you mean PARROT_PORT?"),
        ("PARROT_KV_TOKEN", "PARROT_KV_TOKEN is no setting: did you mean PARROT_KV_TOKENS?"),
        ("PARROT_ZZZ", "PARROT_ZZZ is no setting"),
    ],
)
def test_a_variable_that_is_no_setting_is_told_with_the_nearest_one(
    name: str, said: str, parrot: Parrot, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(name, "9")
    outcome = parrot("demo", "map-reduce", "--engine", "fake", "--json")
    assert outcome.code == 0
    assert outcome.err == f"parrot: {said}\n"
    caplog.clear()
    Client.local(engine="fake").close()
    assert said in caplog.messages


def test_all_variables_that_are_read_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    read = set()
    for folder in ("parrot_sdk", "parrot_server"):
        for path in Path(folder).rglob("*.py"):
            read |= set(re.findall(r"\bPARROT_[A-Z_]+[A-Z]\b", path.read_text("utf-8")))
    assert len(read) > 3
    assert not unknown_settings(dict.fromkeys(read, ""))
    assert not unknown_settings({"HOME": "", "PARROTS": "", "PARROT_WAIT_S": "3", "parrot_port": "1"})


def test_a_port_that_is_taken_is_said(parrot: Parrot) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        outcome = parrot("serve", "--engine", "fake", "--port", port)
    assert outcome.code == 1
    assert outcome.err.startswith(f"parrot: cannot listen on 127.0.0.1, port {port}: ")
    assert outcome.err.count(str(port)) == 1
    assert "--port" in outcome.err


@pytest.mark.parametrize("option", ["--journal", "--picture", "--write"])
def test_a_file_that_cannot_be_written_is_one_line(option: str, parrot: Parrot) -> None:
    outcome = parrot("simulate", "workload", "chain-summary", option, "/nix/file.svg")
    assert outcome.code == 1
    assert outcome.err == "parrot: /nix/file.svg: No such file or directory\n"


def test_a_journal_that_is_there_is_kept(parrot: Parrot, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text("kept")
    outcome = parrot("simulate", "workload", "chain-summary", "--journal", path)
    assert outcome.code == 1
    assert outcome.err == f"parrot: {path}: File exists\n"
    assert path.read_text() == "kept"


def test_a_journal_that_is_not_there_is_one_line(parrot: Parrot) -> None:
    outcome = parrot("simulate", "replay", "/nix")
    assert outcome.code == 1
    assert outcome.err == "parrot: /nix: No such file or directory\n"


def test_an_unknown_engine_is_named_with_those_there_are(parrot: Parrot) -> None:
    outcome = parrot("serve", "--engine", "nix")
    assert outcome.code == 2
    assert "Invalid value for '--engine': 'nix' is not one of 'embedded', 'llamacpp', 'fake', 'none'" in outcome.err


def test_options_of_a_server_in_this_process_do_not_go_with_a_url(parrot: Parrot) -> None:
    outcome = parrot("demo", "chain", "--url", "http://127.0.0.1:1", "--engine", "fake")
    assert outcome.code == 1
    assert "--engine" in outcome.err


def test_serve_says_where_and_stops_on_sigint_without_a_traceback() -> None:
    with started("serve", "--engine", "fake", "--port", "0", "--templates", "templates") as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert re.fullmatch(r"Parrot listens at http://127\.0\.0\.1:\d+\n", line)
        assert process.stderr is not None
        assert process.stderr.readline().endswith("engine fake is up\n")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "", "")


def test_ctrl_c_cancels_the_program_of_a_demo() -> None:
    engine = FakeEngine(script=lambda request: Answer(["x"], then="hang"))
    with serving(engine) as server:
        with started("demo", "chain", "--quick", "--url", server.url) as process:
            until(lambda: engine.starts, "a call")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=20)
        assert process.returncode == 130, err
        assert out == ""
        assert "Traceback" not in err
        program = server.http.get("/v1/programs").json()["programs"][0]
        assert program["state"] == "cancelled"


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_progress_is_shown_on_a_terminal_and_only_there() -> None:
    import pty

    leader, follower = pty.openpty()
    command = ("demo", "map-reduce", "--engine", "fake", "--maps", "2", "--json")
    with started(*command, stderr=follower, stdin=follower, text=False) as process:
        os.close(follower)
        shown = b""
        while True:
            try:
                piece = os.read(leader, 65536)
            except OSError:  # the other end was closed
                break
            if not piece:
                break
            shown += piece
        assert process.stdout is not None
        out = process.stdout.read()
        assert process.wait(20) == 0
    os.close(leader)
    assert b"starting the engine" in shown
    assert out.startswith(b"{")
    assert b"\x1b" not in out
