"""`--compare`: the same program run by ordinary clients and declared, and what the comparison says of it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from parrot_sdk import CallFailed, Client
from parrot_server.demo.background import Load
from parrot_server.demo.chain import Shape
from parrot_server.demo.compare import (
    IN_ORDER,
    OF_CHAIN,
    OF_MAP_REDUCE,
    ONE_BY_ONE,
    A,
    B,
    C,
    Comparison,
    Configuration,
    Run,
    compare,
)
from parrot_server.demo.compare_table import compare_table
from parrot_server.demo.workloads import Fan, Workload, a_chain, a_map_reduce
from parrot_server.engines.base import Request
from parrot_server.engines.fake import FakeEngine
from parrot_server.engines.fake_script import Answer, Script, prompt_text
from parrot_server.errors import EngineError, Fault
from tests.cli.conftest import Parrot
from tests.serving import serving

RTT_MS = 5.0
NOBODY = Load(decoders=0)
SHAPE = Shape(steps=4, first_tokens=120, more_tokens=60, note_tokens=8)
FAN = Fan(maps=3, shared_tokens=150, own_tokens=40, answer_tokens=8, last_tokens=8)


def words(text: str) -> int:
    """A tokenizer for tests."""
    return len(text.split())


class Bench:
    """Compares on scripted engines, and keeps them."""

    def __init__(self, script: Script | None = None, **abilities: Any) -> None:
        self._script, self._abilities = script, abilities
        self.engines: dict[str, FakeEngine] = {}

    def compare(self, workload: Workload, configurations: tuple[Configuration, ...], load: Load = NOBODY) -> Comparison:
        """The comparison."""
        return asyncio.run(compare(workload, configurations, self._open, RTT_MS, load, words))

    @contextmanager
    def _open(self, configuration: Configuration) -> Iterator[Client]:
        engine = self.engines[configuration.name] = FakeEngine(script=self._script, **self._abilities)
        with serving(engine, policy=configuration.policy) as server, Client(server.url) as client:
            yield client

    def prompts(self, configuration: Configuration) -> list[str]:
        """What the program of a configuration asked, without what the background did."""
        return [prompt for prompt in self.engines[configuration.name].prompts if "Session background" not in prompt]


def without_session(prompt: str) -> str:
    """A prompt from its second sentence on."""
    return prompt.partition(". ")[2]


def test_all_configurations_ask_the_same_of_the_engine() -> None:
    bench = Bench(script=lambda request: f"note {len(prompt_text(request.prompt))}")
    comparison = bench.compare(a_chain(SHAPE, words), OF_CHAIN)
    asked = [[without_session(prompt) for prompt in bench.prompts(one)] for one in OF_CHAIN]
    assert len(asked[0]) == SHAPE.steps
    assert all(prompts == asked[0] for prompts in asked)
    assert [run.name for run in comparison.runs] == ["A", "B", "B2", "C"]
    assert {run.output_tokens for run in comparison.runs} == {comparison.runs[0].output_tokens}


def test_a_map_reduce_asks_the_same_in_all_configurations() -> None:
    bench = Bench(script=lambda request: f"said {len(prompt_text(request.prompt))}")
    bench.compare(a_map_reduce(FAN, words), OF_MAP_REDUCE)
    asked = [sorted(without_session(prompt) for prompt in bench.prompts(one)) for one in OF_MAP_REDUCE]
    assert len(asked[0]) == FAN.maps + 1
    assert all(prompts == asked[0] for prompts in asked)
    reduce = next(prompt for prompt in asked[0] if "These sentences" in prompt)
    assert reduce.count("said ") == FAN.maps


def test_only_without_a_prefix_cache_has_each_prompt_a_beginning_of_its_own() -> None:
    bench = Bench()
    bench.compare(a_chain(SHAPE, words), OF_CHAIN)
    beginnings = {one.name: {prompt.partition(". ")[0] for prompt in bench.prompts(one)} for one in OF_CHAIN}
    assert {name: len(found) for name, found in beginnings.items()} == {"A": SHAPE.steps, "B": 1, "B2": 1, "C": 1}
    assert len(set().union(*beginnings.values())) == SHAPE.steps + 3, "nor does one configuration warm another's cache"


def test_a_client_that_declares_nothing_waits_a_round_trip_for_each_call() -> None:
    comparison = Bench().compare(a_chain(SHAPE, words), OF_CHAIN)
    for one in (A, B):
        assert comparison.run_of(one).wall_s >= SHAPE.steps * RTT_MS / 1e3
    for one in (IN_ORDER, C):
        assert comparison.run_of(one).wall_s >= RTT_MS / 1e3
    assert {run.name: run.requests for run in comparison.runs} == {"A": 4, "B": 4, "B2": 2, "C": 2}


def test_maps_go_out_together_or_one_at_a_time() -> None:
    """The seed of a call is the number of answers that its client had when it sent the call."""
    bench = Bench()
    bench.compare(a_map_reduce(FAN, words), OF_MAP_REDUCE)
    seeds = {
        one.name: [request.sampling.seed for request in bench.engines[one.name].requests] for one in (B, ONE_BY_ONE)
    }
    assert seeds == {"B": [0] * FAN.maps + [FAN.maps], "B1": list(range(FAN.maps + 1))}


def test_the_background_is_the_same_for_all_and_only_c_says_that_nobody_waits_for_it() -> None:
    load = Load(decoders=3, prompt_tokens=10, least_tokens=4, most_tokens=9, seed=7, rate_s=0.05)
    bench = Bench(token_s=0.002)
    comparison = bench.compare(a_chain(SHAPE, words), OF_CHAIN, load)
    behind = {
        one.name: [
            request for request in bench.engines[one.name].requests if "background" in prompt_text(request.prompt)
        ]
        for one in OF_CHAIN
    }
    first = {
        name: {without_session(prompt_text(request.prompt)) for request in requests[:6]}
        for name, requests in behind.items()
    }
    assert len(first["A"]) >= load.decoders
    assert len(set.intersection(*first.values())) >= load.decoders
    assert {name: {request.priority for request in requests} for name, requests in behind.items()} == {
        "A": {0}, "B": {0}, "B2": {0}, "C": {-1},
    }  # fmt: skip
    assert all(run.background_alone_tokens_s > 0 for run in comparison.runs)


def test_a_failure_of_the_background_is_told_and_nothing_hangs() -> None:
    def script(request: Request) -> Answer:
        fails = "background" in prompt_text(request.prompt)
        return Answer("note", then=EngineError(Fault.CALL, "refused", "no such luck") if fails else "done")

    load = Load(decoders=2, prompt_tokens=10, least_tokens=4, most_tokens=9, rate_s=0.05)
    with pytest.raises(CallFailed):
        Bench(script).compare(a_chain(SHAPE, words), OF_CHAIN, load)


def comparison_of(*walls: float) -> Comparison:
    """One with these wall times for A, B, B2 and C, where the background of C makes half its tokens."""
    rates = (100.0, 100.0, 100.0, 50.0)
    runs = (
        Run(one.name, one.what, wall, 4, 1000, 200, 80, 100.0, rate, wall * (1 - rate / 100))
        for one, wall, rate in zip(OF_CHAIN, walls, rates, strict=True)
    )
    return Comparison("chain", "4 steps", 50.0, Load(), tuple(runs))


def test_the_steps_from_a_to_c_add_up() -> None:
    comparison = comparison_of(10.0, 6.0, 5.0, 2.0)
    assert comparison.gains_s == {"prefix cache": 4.0, "round trips": 1.0, "objective": 3.0}
    assert sum(comparison.gains_s.values()) == 10.0 - 2.0
    assert comparison.times_faster == {"A": 5.0, "B": 3.0, "B2": 2.5}
    assert comparison.background_loss == pytest.approx(1 / 6), "half of 2 s out of 6"


def test_the_table_says_all_of_it() -> None:
    lines = compare_table(comparison_of(10.0, 6.0, 5.0, 2.0)).splitlines()
    assert "round trip 50 ms" in lines[1]
    assert "24 decoders (seed 1)" in lines[1]
    rows = [line.split() for line in lines if line.startswith(("A ", "B ", "B2 ", "C "))]
    assert [row[0] for row in rows[:4]] == ["A", "B", "B2", "C"]
    assert rows[3][-8:] == ["2.00", "4", "1,000", "200", "80", "100.0", "50.0", "1.0"]
    text = "\n".join(lines)
    for part in ("A → B      4.00 s", "B → B2     1.00 s", "B2 → C      3.00 s", "3.00 times faster than B", "-16.7%"):
        assert part in text


def test_a_machine_that_was_not_as_fast_for_all_is_told() -> None:
    even = comparison_of(10.0, 6.0, 5.0, 2.0)
    assert "not as fast" not in compare_table(even)
    slower = replace(even.runs[1], background_alone_tokens_s=80.0)
    uneven = replace(even, runs=(even.runs[0], slower, *even.runs[2:]))
    assert "the background made 80 to 100 tokens/s" in compare_table(uneven).splitlines()[-1]


@pytest.mark.parametrize("demo", [("map-reduce", "--maps", 2), ("chain", "--quick")], ids=lambda demo: demo[0])
def test_the_command_prints_json_and_nothing_else(demo: tuple[object, ...], parrot: Parrot) -> None:
    outcome = parrot("demo", *demo, "--compare", "--rtt-ms", 1, "--background", 0, "--engine", "fake", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    said = outcome.json()
    names = [run["name"] for run in said["runs"]]
    assert names == (["A", "B1", "B", "B2", "C"] if "--maps" in demo else ["A", "B", "B2", "C"])
    assert said["rtt_ms"] == 1
    walls = {run["name"]: run["wall_s"] for run in said["runs"]}
    for before, after in itertools.pairwise(("A", "B", "B2", "C")):
        assert walls[before] - walls[after] in [pytest.approx(gain) for gain in said["gains_s"].values()]
    assert said["times_faster"]["B"] == pytest.approx(walls["B"] / walls["C"])


def test_the_command_prints_a_table(parrot: Parrot) -> None:
    outcome = parrot("demo", "map-reduce", "--maps", 2, "--compare", "--background", 0, "--engine", "fake")
    assert outcome.code == 0
    assert "2 maps" in outcome.out
    assert "times faster than B1" in outcome.out
    assert "B  client loop" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [(["map-reduce", "--docs", "."], "--docs"), (["chain", "--url", "http://127.0.0.1:1"], "--url")],
    ids=str,
)
def test_what_does_not_go_with_a_comparison_is_one_line(arguments: list[str], culprit: str, parrot: Parrot) -> None:
    outcome = parrot("demo", *arguments, "--compare")
    assert outcome.code == 1
    assert outcome.err.count("\n") == 1
    assert culprit in outcome.err
    assert not outcome.out
