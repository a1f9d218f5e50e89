"""Large bodies and large graphs: taken in time, run to their end, and nobody else waits for them."""

from __future__ import annotations

import json
import os
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serving import echo, program, serving_process, until


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[int, httpx.Client]]:
    with serving_process(value_bytes=12_000_000) as (process, client):
        yield process.pid, client


@pytest.fixture
def http(served: tuple[int, httpx.Client]) -> httpx.Client:
    return served[1]


def cpu_s(process_id: int) -> float:
    """Seconds that a process has computed: unlike a clock, it is not slowed by what else runs on the machine."""
    if not Path("/proc/self/stat").exists():
        return time.perf_counter()
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def value(http: httpx.Client, program_id: str, name: str) -> str:
    response = http.get(f"/v1/programs/{program_id}/variables/{name}", params={"wait": 100})
    assert response.status_code == 200, response.text
    text: str = response.json()["value"]
    return text


class Pulse:
    """Asks for /healthz every 20 ms while the block lasts, and keeps how long each answer took."""

    def __init__(self, http: httpx.Client) -> None:
        self.seconds: list[float] = []
        self._http = http
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def _ask(self) -> None:
        while not self._done.wait(0.02):
            response = self._http.get("/healthz")
            assert response.status_code == 200
            self.seconds.append(response.elapsed.total_seconds())

    def __enter__(self) -> Pulse:
        self._thread.start()
        until(lambda: self.seconds)
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


@pytest.mark.parametrize("unit", ["plain text ", 'es"ca\\ped\n', "ünïcödé 😀 "])
def test_a_value_of_8_mb_does_not_hold_up_others(http: httpx.Client, unit: str) -> None:
    text = unit * (8_000_000 // len(unit.encode()))
    content = json.dumps(program(echo("a", {"var": "x"}, "v"), variables={"x": text}), ensure_ascii=False).encode()
    with Pulse(http) as calm:
        until(lambda: len(calm.seconds) > 20)
    with Pulse(http) as pulse:
        for _ in range(5):
            response = http.post("/v1/programs", content=content)
            assert response.status_code == 201, response.text
            assert value(http, response.json()["id"], "v") == "ok"
        assert value(http, response.json()["id"], "x") == text
    before, during = (statistics.quantiles(seconds, n=100)[98] for seconds in (calm.seconds, pulse.seconds))
    print(f"\n/healthz, p99: {1000 * before:.0f} ms before, {1000 * during:.0f} ms while 8 MB come in")
    assert during - before < 0.5


def test_ten_thousand_maps_are_taken_in_two_seconds_and_run(served: tuple[int, httpx.Client]) -> None:
    process_id, http = served
    maps = 10_000
    calls = [echo(f"m{i}", {"var": f"x{i}"}, f"s{i}") for i in range(maps)]
    calls.append(echo("reduce", [{"var": f"s{i}"} for i in range(maps)], "answer"))
    body = program(*calls, variables={f"x{i}": f"part {i} of the text" for i in range(maps)})
    content = json.dumps(body).encode()
    begun, computed = time.perf_counter(), cpu_s(process_id)
    response = http.post("/v1/programs", content=content)
    taken_s, taken_cpu_s = time.perf_counter() - begun, cpu_s(process_id) - computed
    assert response.status_code == 201, response.text
    assert value(http, response.json()["id"], "answer") == "ok"
    run_s = time.perf_counter() - begun
    print(f"\n10,000 maps: taken in {taken_s:.2f} s ({taken_cpu_s:.2f} s computed), run in {run_s:.2f} s")
    assert taken_cpu_s < 2
    graph = http.get(f"/v1/programs/{response.json()['id']}/graph").json()
    assert {node["state"] for node in graph["nodes"]} == {"done"}
    assert len(graph["edges"]) == maps


def test_a_chain_of_five_thousand_steps_runs(http: httpx.Client) -> None:
    steps = 5_000
    calls = [echo(f"c{i}", {"var": f"v{i}"}, f"v{i + 1}") for i in range(steps)]
    begun = time.perf_counter()
    response = http.post("/v1/programs", json=program(*calls, variables={"v0": "go"}))
    assert response.status_code == 201, response.text
    assert value(http, response.json()["id"], f"v{steps}") == "ok"
    print(f"\n5,000 steps: {time.perf_counter() - begun:.2f} s")


def test_what_is_over_the_limit_is_refused_in_time(http: httpx.Client) -> None:
    calls: list[dict[str, Any]] = [echo(f"m{i}", "go", f"s{i}") for i in range(20_001)]
    content = json.dumps(program(*calls)).encode()
    begun = time.perf_counter()
    response = http.post("/v1/programs", content=content)
    assert (response.status_code, response.json()["type"]) == (422, "limit_exceeded")
    assert "calls_per_program" in response.json()["detail"]
    assert time.perf_counter() - begun < 3
