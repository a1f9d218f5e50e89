"""The same seed gives the same bytes, and a journal, simulated or of a live server, plays again to the same actions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

from parrot_server.clock import run_virtual
from parrot_server.core.events import Action, Cancelled, Event, Submitted
from parrot_server.core.model import CallSpec, FunctionSpec, Op, Ref, Sampling, Value
from parrot_server.core.settings import SchedulerSettings
from parrot_server.engines.fake import Answer, FakeEngine
from parrot_server.journal import FileJournal, Header
from parrot_server.runtime import Runtime
from parrot_server.sim.contest import play
from parrot_server.sim.machines import engine_named
from parrot_server.sim.presets import preset
from parrot_server.sim.replay import Recorder, digest, replay
from parrot_server.sim.world import Setup

WRITE = FunctionSpec("f" * 64, "write", "Go on: {{x}} {{y}}", (("y", Sampling(max_tokens=200)),), format="text")


def record(path: Path, seed: int) -> list[tuple[float, Event, list[Action]]]:
    """Simulate with a journal. Returns what happened."""
    setup = Setup(SchedulerSettings(), engine_named("h100"))
    recorder = Recorder(path, setup.settings)
    seen: list[tuple[float, Event, list[Action]]] = []

    def observe(now_s: float, event: Event, actions: list[Action]) -> None:
        recorder.observe(now_s, event, actions)
        seen.append((now_s, event, actions))

    play(preset("document-qa", seed), "parrot", setup, observe)
    recorder.close()
    return seen


def test_two_runs_of_a_seed_write_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        record(tmp_path / name, seed)
    texts = {name: (tmp_path / name).read_bytes() for name in "abc"}
    assert texts["a"] == texts["b"] != texts["c"]
    assert texts["a"].count(b"\n") > 500


def test_a_simulated_journal_plays_again_to_the_same_actions(tmp_path: Path) -> None:
    seen = record(tmp_path / "journal", 5)
    assert list(replay(tmp_path / "journal")) == seen
    assert digest(replay(tmp_path / "journal")) == digest(iter(seen))


def test_a_live_servers_journal_plays_again_to_the_same_actions(tmp_path: Path) -> None:
    lived: list[tuple[float, Event, list[Action]]] = []

    async def serve() -> None:
        rng = Random(11)
        engines = [
            FakeEngine(id=name, script=lambda request: Answer("word " * rng.randint(1, 80))) for name in ("e0", "e1")
        ]
        journal = FileJournal(tmp_path / "live", Header(epoch_s=0.0, settings=SchedulerSettings()))
        runtime = Runtime(engines, journal=journal)
        handle = runtime.scheduler.handle

        def note(event: Event, now_s: float) -> list[Action]:
            actions = handle(event, now_s)
            lived.append((now_s, event, list(actions)))
            return actions

        runtime.scheduler.handle = note  # type: ignore[method-assign]
        async with runtime:
            programs = [await submit(runtime, number) for number in range(30)]
            await runtime.post(Cancelled(programs[7]))
            for program in programs:
                await runtime.variable(program, "answer", 3600)

    run_virtual(asyncio.wait_for(serve(), 86_400))
    assert len(lived) > 300
    assert list(replay(tmp_path / "live")) == lived


async def submit(runtime: Runtime, number: int) -> str:
    def call(name: str, x: Any, y: str) -> CallSpec:
        return CallSpec(name, Op.GENERATE, (("x", x),), (("y", y),), function=WRITE.id)

    maps = [call(f"m{i}", Value(f"text {i} of {number}", 9), f"s{i}") for i in range(number % 5 + 1)]
    last = call("last", tuple(Ref(f"s{i}") for i in range(len(maps))), "answer")
    program = runtime.new_program_id()
    await runtime.post(Submitted(program, functions=(WRITE,), calls=(*maps, last)))
    return program
