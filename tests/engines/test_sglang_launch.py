"""Launching SGLang, with a scripted server in its place: found dead, started again, stopped, gone with its parent."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from parrot_server.engines.base import Done
from parrot_server.engines.sglang_launch import LaunchedSGLang
from parrot_server.errors import EngineError, Fault, SetupError
from tests.engines.contract import ask, request, until

pytestmark = pytest.mark.anyio
STAND_IN = """
import argparse, asyncio, subprocess, sys
from parrot_server.engines.fake_http import FakeServer

flags = argparse.ArgumentParser(prog="launch_server")
flags.add_argument("--port", type=int)
for name in ("--model-path", "--host"):
    flags.add_argument(name)
for name in ("session-radix-cache", "priority-scheduling", "metrics", "cache-report"):
    flags.add_argument(f"--enable-{name}", action="store_true", required=True)
flags.add_argument("--incremental-streaming-output", action="store_true", required=True)
settings = vars(flags.parse_args())
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])  # SGLang has children too

async def main():
    server = FakeServer("sglang", settings={"incremental_streaming_output": True})
    server.port = settings["port"]
    async with server:
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    package = tmp_path / "packages" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_text(STAND_IN)
    return {"PYTHONPATH": f"{package.parent}:{Path(__file__).parents[2]}"}


@pytest.fixture
async def engine(environment: dict[str, str], tmp_path: Path) -> AsyncIterator[LaunchedSGLang]:
    # Another name for this interpreter, so that nothing is asked of its own packages.
    engine = LaunchedSGLang(
        "own", "model", python=other_python(tmp_path), environment=environment, log=tmp_path / "log"
    )
    yield engine
    await engine.close()


def other_python(folder: Path) -> str:
    """A script that runs this interpreter."""
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    script.chmod(0o755)
    return str(script)


def group_members(group: int) -> list[int]:
    """The processes of a process group."""
    listing = subprocess.run(["ps", "-A", "-o", "pid=,pgid=,stat="], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in listing.splitlines()]
    return [int(pid) for pid, process_group, state in rows if int(process_group) == group and not state.startswith("Z")]


async def gone(group: int) -> None:
    async def no_member() -> bool:
        return not group_members(group)

    await until(no_member, 10)


async def test_killed_noticed_and_started_again(engine: LaunchedSGLang) -> None:
    await engine.start()
    first = engine.process_id
    assert first is not None
    assert isinstance([event async for event in engine.generate(request(ask("a bird")))][-1], Done)
    os.kill(first, signal.SIGKILL)

    async def noticed() -> bool:
        try:
            await engine.load()
        except EngineError as error:
            return error.fault is Fault.ENGINE
        return False

    await until(noticed, 10)
    await engine.start()
    second = engine.process_id
    assert second not in (None, first)
    assert isinstance([event async for event in engine.generate(request(ask("a bird")))][-1], Done)
    await gone(first)  # its child too, though it had no time to see to that


async def test_a_start_while_it_runs_keeps_it(engine: LaunchedSGLang) -> None:
    await engine.start()
    process = engine.process_id
    await engine.start()
    assert engine.process_id == process


async def test_close_stops_it_and_its_children(engine: LaunchedSGLang) -> None:
    await engine.start()
    process = engine.process_id
    assert process is not None
    assert len(group_members(process)) > 1
    await engine.close()
    await gone(process)
    assert engine.process_id is None


async def test_what_it_says_of_its_flags_is_passed_on(environment: dict[str, str], tmp_path: Path) -> None:
    engine = LaunchedSGLang(
        "own",
        "model",
        python=other_python(tmp_path),
        arguments=["--no-such-flag"],
        environment=environment,
        log=tmp_path / "log",
    )
    with pytest.raises(EngineError, match=r"exit code 2.*no-such-flag"):
        await engine.start()
    await engine.close()


async def test_sglang_must_be_installed(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"parrot-serve\[sglang\]"):
        LaunchedSGLang("own", "model")
    engine = LaunchedSGLang("own", "model", python="/no/such/python", log=tmp_path / "log")
    with pytest.raises((SetupError, EngineError), match=r"/no/such/python"):
        await engine.start()
    await engine.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
async def test_it_goes_when_we_are_killed(environment: dict[str, str], tmp_path: Path) -> None:
    program = (
        "import asyncio, os\nfrom pathlib import Path\nfrom parrot_server.engines.sglang_launch import LaunchedSGLang\n"
        f"engine = LaunchedSGLang('own', 'model', python={other_python(tmp_path)!r}, environment={environment!r}, "
        f"log=Path({str(tmp_path / 'log')!r}))\n"
        "async def main():\n    await engine.start()\n    print(engine.process_id, flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    process = int(await asyncio.wait_for(parent.stdout.readline(), 20))
    assert process in group_members(process)
    parent.kill()
    await parent.wait()

    async def ended() -> bool:
        return process not in group_members(process)

    await until(ended, 10)
    for child in group_members(process):  # the stand-in's, which knows nothing of its parent; SGLang's do
        os.kill(child, signal.SIGKILL)
