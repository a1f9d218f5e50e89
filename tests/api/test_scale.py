"""Large bodies and large graphs: taken in time, run to their end, and nobody else waits for them."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from parrot_server.engines.fake import Answer, FakeEngine
from tests.serving import Server, echo, program, serving, until


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    engine = FakeEngine(script=lambda request: Answer(["ok"]), context_tokens=10**7, kv_tokens=10**8)
    with serving(engine, value_bytes=12_000_000) as running:
        yield running


class Pulse:
    """Asks for /healthz every 20 ms while the block lasts, and keeps how long each answer took."""

    def __init__(self, server: Server) -> None:
        self.seconds: list[float] = []
        self._server = server
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def _ask(self) -> None:
        while not self._done.wait(0.02):
            begun = time.perf_counter()
            reader = self._server.open("/healthz")
            assert reader.status == 200
            reader.leave()
            self.seconds.append(time.perf_counter() - begun)

    def __enter__(self) -> Pulse:
        self._thread.start()
        until(lambda: self.seconds)
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


@pytest.mark.parametrize("unit", ["plain text ", 'es"ca\\ped\n', "ünïcödé 😀 "])
def test_a_value_of_8_mb_does_not_hold_up_others(server: Server, unit: str) -> None:
    text = unit * (8_000_000 // len(unit.encode()))
    content = json.dumps(program(echo("a", {"var": "x"}, "v"), variables={"x": text}), ensure_ascii=False).encode()
    with Pulse(server) as pulse:
        for _ in range(5):
            response = server.http.post("/v1/programs", content=content)
            assert response.status_code == 201, response.text
            assert server.value(response.json()["id"], "v") == "ok"
        assert server.value(response.json()["id"], "x") == text
    p99 = statistics.quantiles(pulse.seconds, n=100)[98]
    assert p99 < 0.2, f"p99 of /healthz: {p99:.3f} s of {len(pulse.seconds)}"


def test_ten_thousand_maps_are_taken_in_two_seconds_and_run(server: Server) -> None:
    maps = 10_000
    calls = [echo(f"m{i}", {"var": f"x{i}"}, f"s{i}") for i in range(maps)]
    calls.append(echo("reduce", [{"var": f"s{i}"} for i in range(maps)], "answer"))
    body = program(*calls, variables={f"x{i}": f"part {i} of the text" for i in range(maps)})
    content = json.dumps(body).encode()
    begun = time.perf_counter()
    response = server.http.post("/v1/programs", content=content)
    taken_s = time.perf_counter() - begun
    assert response.status_code == 201, response.text
    assert server.value(response.json()["id"], "answer", 120) == "ok"
    print(f"\n10,000 maps: taken in {taken_s:.2f} s, run in {time.perf_counter() - begun:.2f} s")
    assert taken_s < 2
    graph = server.http.get(f"/v1/programs/{response.json()['id']}/graph").json()
    assert {node["state"] for node in graph["nodes"]} == {"done"}
    assert len(graph["edges"]) == maps


def test_a_chain_of_five_thousand_steps_runs(server: Server) -> None:
    steps = 5_000
    calls = [echo(f"c{i}", {"var": f"v{i}"}, f"v{i + 1}") for i in range(steps)]
    begun = time.perf_counter()
    reply = server.submit(program(*calls, variables={"v0": "go"}))
    assert server.value(reply["id"], f"v{steps}", 120) == "ok"
    print(f"\n5,000 steps: {time.perf_counter() - begun:.2f} s")


def test_what_is_over_the_limit_is_refused_in_time(server: Server) -> None:
    calls: list[dict[str, Any]] = [echo(f"m{i}", "go", f"s{i}") for i in range(20_001)]
    content = json.dumps(program(*calls)).encode()
    begun = time.perf_counter()
    response = server.http.post("/v1/programs", content=content)
    assert (response.status_code, response.json()["type"]) == (422, "limit_exceeded")
    assert "calls_per_program" in response.json()["detail"]
    assert time.perf_counter() - begun < 3
