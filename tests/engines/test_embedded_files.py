"""Models on disk: found, refused, prepared once."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import signal
import sys
import threading
from pathlib import Path

import pytest

from parrot_server.engines.embedded import EmbeddedEngine, engine_process
from parrot_server.engines.embedded.engine_process import EngineProcess
from parrot_server.engines.embedded.messages import Start
from parrot_server.engines.embedded.model_files import (
    DEFAULT_MODEL,
    Progress,
    cache_folder,
    check_sha256,
    in_thread,
    model_name,
    prepare,
    prepared_folder,
    watched,
)
from parrot_server.engines.embedded.settings import Settings
from parrot_server.errors import EngineError, SetupError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARROT_CACHE", str(tmp_path / "cache"))


def test_the_cache_is_where_the_user_says(tmp_path: Path) -> None:
    assert cache_folder() == tmp_path / "cache" / "models"
    assert prepared_folder(DEFAULT_MODEL) is None


@pytest.mark.parametrize("model", ["no-such-model", "no/such/file.gguf", "."])
def test_a_model_that_is_not_there_is_said_to_be_so(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SetupError, match=r"no model|no OpenVINO model folder") as caught:
        prepare(model)
    assert model in str(caught.value) or str(tmp_path) in str(caught.value)


def test_an_openvino_folder_is_used_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "openvino_model.xml").write_text("")
    assert prepare(str(tmp_path)) == tmp_path
    assert model_name(str(tmp_path)) == tmp_path.name


def test_names_of_models() -> None:
    assert model_name(DEFAULT_MODEL) == DEFAULT_MODEL
    assert model_name("/models/Qwen2-0.5B.gguf") == "Qwen2-0.5B"


def test_a_changed_file_is_another_model(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    file.write_bytes(b"one")
    assert prepared_folder(str(file)) is None


def test_a_model_that_is_not_the_checked_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model"
    file.write_bytes(b"parrot")
    check_sha256(file, hashlib.sha256(b"parrot").hexdigest())
    with pytest.raises(SetupError, match="SHA-256"):
        check_sha256(file, hashlib.sha256(b"other").hexdigest())


def test_a_file_that_is_no_model_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(b"GGUF no more than this")
    with pytest.raises(SetupError, match=r"broken\.gguf could not be converted"):
        prepare(str(file))
    assert [path for path in cache_folder().iterdir() if path.suffix != ".lock"] == []


def test_without_its_packages_it_says_how_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "openvino" else find(name))
    with pytest.raises(SetupError, match=r"openvino not installed.*pip install 'parrot-serve\[embedded\]'"):
        asyncio.run(EmbeddedEngine().start())


@pytest.mark.parametrize(
    "options", [{"threads": 0}, {"kv_tokens": 31}, {"chunk_tokens": 31}, {"max_running": 0}, {"mode": "slow"}]
)
def test_options_out_of_range_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        EmbeddedEngine(**options)  # type: ignore[arg-type]


def test_a_command_ends_with_who_looks_at_it() -> None:
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        if looks > 1:
            raise SetupError("no longer wanted")

    with pytest.raises(SetupError):  # does not return before the command has ended
        watched([sys.executable, "-c", "import time; time.sleep(60)"], look)
    code, said = watched([sys.executable, "-c", "import sys; sys.exit('what it said')"], lambda: None)
    assert (code, said) == (1, "what it said\n")


def test_a_model_that_is_no_longer_wanted_is_not_prepared_to_the_end() -> None:
    begun = threading.Event()

    def work(model: str, progress: Progress) -> Path:
        while True:
            progress("preparing", None)
            begun.set()

    async def cancelled() -> bool:
        task = asyncio.create_task(in_thread(work, "m", lambda what, done: None))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return task.cancelled()

    assert asyncio.run(cancelled())  # it has waited for its threads


@pytest.mark.skipif(sys.platform == "win32", reason="signals tell how a process ended")
def test_a_process_that_loads_its_model_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    started: asyncio.Queue[asyncio.subprocess.Process] = asyncio.Queue()
    execute = asyncio.create_subprocess_exec

    async def recorded(*command: str, **options: object) -> asyncio.subprocess.Process:
        process = await execute(*command, **options)  # type: ignore[arg-type]
        started.put_nowait(process)
        return process

    async def cancelled() -> int | None:
        start = Start(Settings(folder="nix", name="nix"), "embedded")
        task = asyncio.create_task(EngineProcess.spawn(start, lambda report: None, lambda error: None))
        process = await started.get()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return process.returncode

    monkeypatch.setattr(asyncio, "create_subprocess_exec", recorded)
    assert asyncio.run(cancelled()) == -signal.SIGKILL


@pytest.mark.model
def test_two_processes_prepare_the_packaged_model_once(tmp_path: Path) -> None:
    script = (
        "from parrot_server.engines.embedded.model_files import prepare\n"
        "did = []\n"
        "folder = prepare('smollm2-135m', lambda what, done: did.append(what))\n"
        "print(folder, 'converting the model' in did)\n"
    )

    async def both() -> list[bytes]:
        pipe = asyncio.subprocess.PIPE
        processes = [await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=pipe) for _ in range(2)]
        return [out for out, _ in await asyncio.gather(*(process.communicate() for process in processes))]

    said = [line.decode().split() for line in asyncio.run(both())]
    folder = prepared_folder(DEFAULT_MODEL)
    assert folder is not None
    assert sorted(said) == [[str(folder), "False"], [str(folder), "True"]]
    assert {path.name for path in folder.iterdir()} >= {"openvino_model.xml", "tokenizer.json", "config.json"}
    assert [path.name for path in folder.parent.iterdir() if path.name.endswith(".preparing")] == []


def test_a_process_that_says_a_line_without_end_is_still_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    says = "import sys; sys.stderr.write('x' * 300_000 + '\\nits last words'); sys.exit(3)"
    monkeypatch.setattr(engine_process, "_COMMAND", (sys.executable, "-c", says))
    start = Start(Settings(folder="nix", name="nix"), "embedded")
    with pytest.raises(EngineError, match=r"ended with code 3 .*it said: its last words"):
        asyncio.run(EngineProcess.spawn(start, lambda report: None, lambda error: None))
