"""`parrot models` and `parrot doctor`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from parrot_server.engine_choice import steps
from tests.cli.conftest import Parrot


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of models."""
    monkeypatch.setenv("PARROT_CACHE", str(tmp_path))
    return tmp_path / "models"


def test_no_models_are_listed_with_the_way_to_get_one(cache: Path, parrot: Parrot) -> None:
    assert parrot("models", "list", "--json").json() == []
    assert "parrot models pull" in parrot("models", "list").out


def test_prepared_models_are_listed_and_unfinished_ones_not(cache: Path, parrot: Parrot) -> None:
    for name in ("tiny-llama-0123abcd-v1", ".other-0123abcd-v1.preparing"):
        (cache / name).mkdir(parents=True)
        (cache / name / "openvino_model.xml").write_text("x" * 100)
    (model,) = parrot("models", "list", "--json").json()
    assert model == {"name": "tiny-llama", "folder": str(cache / "tiny-llama-0123abcd-v1"), "bytes": 100}
    assert parrot("models", "list").out.startswith("tiny-llama ")


def test_a_folder_that_is_prepared_needs_no_pull(tmp_path: Path, cache: Path, parrot: Parrot) -> None:
    (tmp_path / "openvino_model.xml").write_text("")
    outcome = parrot("models", "pull", tmp_path, "--json")
    assert outcome.json()["folder"] == str(tmp_path)


def test_the_doctor_tells_what_an_engine_can_do(parrot: Parrot) -> None:
    outcome = parrot("doctor", "--engine", "fake")
    assert outcome.code == 0
    assert "engine fake" in outcome.out
    assert "yes  pin" in outcome.out


def test_the_doctor_has_json(parrot: Parrot) -> None:
    report = parrot("doctor", "--engine", "fake", "--json").json()
    assert report["machine"]["cores"] >= 1
    (engine,) = report["engines"]
    assert engine["id"] == "fake"
    assert engine["error"] is None
    assert {finding["ability"] for finding in engine["findings"]} >= {"pin", "pause", "schema"}


def test_the_doctor_says_which_engine_is_not_there_and_examines_the_others(parrot: Parrot) -> None:
    outcome = parrot("doctor", "--openai", "http://127.0.0.1:9", "--engine", "fake", "--json")
    assert outcome.code == 1
    errors = {engine["id"]: engine["error"] for engine in outcome.json()["engines"]}
    assert errors["fake"] is None
    assert "openai-1" in errors["openai-1"]


def test_without_a_terminal_each_step_of_preparing_a_model_is_one_line(
    tmp_path: Path, cache: Path, parrot: Parrot
) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF no more than this")
    body = tmp_path / "body.json"
    body.write_text("{}")
    for command in (("models", "pull", tmp_path / "broken.gguf"), ("run", body, "--model", tmp_path / "broken.gguf")):
        first, *others = parrot(*command).err.splitlines()
        assert first == "converting the model"
        assert len(others) == 1


def test_a_server_in_a_script_says_on_stderr_that_it_prepares_a_model(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF no more than this")
    script = "from parrot_sdk import Client; import sys; Client.local(model=sys.argv[1])"
    command = [sys.executable, "-c", script, str(tmp_path / "broken.gguf")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr.startswith("converting the model\n")
    assert done.returncode == 1


def test_a_step_is_told_once() -> None:
    told: list[str] = []
    show = steps(told.append)
    for what, done in [("a", 0.1), ("a", 0.2), ("b", None), ("ready", 1.0)]:
        show(what, done)
    assert told == ["a", "b"]
