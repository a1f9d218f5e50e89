"""The server as a process: it starts, stops when it is told to, and says what is missing."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import statistics
import time
from pathlib import Path

import pytest

from parrot_server.config import Settings
from parrot_server.core.scheduler import Scheduler
from parrot_server.engine_choice import chosen_engines
from parrot_server.engines.base import EngineSpec
from parrot_server.engines.fake import FakeEngine
from parrot_server.errors import SetupError
from parrot_server.journal import read
from parrot_server.server import read_templates, serve
from tests.serving import RawReader, echo, program, serving, serving_process

FILE = """---
outputs:
  summary: {max_tokens: 9}
format: text
---
Sum up {{ chapter }}
{{ summary }}
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_server_though_readers_are_there(number: signal.Signals) -> None:
    with serving_process() as (process, http):
        made = http.post("/v1/programs", json=program(echo("a", {"var": "x"}, "v"), variables={"x": None})).json()
        path = f"/v1/programs/{made['id']}"
        port = int(str(http.base_url).rstrip("/").rpartition(":")[2])
        paths = [f"{path}/events", f"{path}/variables/v/stream", f"{path}/variables/v?wait=300"]
        readers = [RawReader(port, f"GET {it} HTTP/1.1\r\nHost: parrot\r\n\r\n".encode()) for it in paths]
        assert [reader.status for reader in readers[:2]] == [200, 200]
        begun = time.monotonic()
        process.send_signal(number)
        assert process.wait(10) == 0
        assert time.monotonic() - begun < 4
        assert readers[2].status == 503
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
        for reader in readers:
            reader.leave()


def test_a_port_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SetupError, match=f"port {port}: .*give another --port"):
            asyncio.run(serve(Settings(port=port), engines=[FakeEngine()]))


def test_an_engine_that_this_machine_cannot_run_ends_the_server_and_says_why() -> None:
    class Missing(FakeEngine):
        async def start(self) -> EngineSpec:
            raise SetupError("install this and that")

    with pytest.raises(SetupError, match="install this and that"):
        asyncio.run(asyncio.wait_for(serve(Settings(port=0), engines=[Missing()]), 10))


def test_a_server_without_an_engine_answers_all_the_same() -> None:
    engine = FakeEngine()
    engine.go_down()
    with serving(engine) as server:
        assert server.http.get("/healthz").status_code == 200
        ready = server.http.get("/readyz")
        assert (ready.status_code, ready.json()["type"], ready.json()["retryable"]) == (503, "no_engine", True)
        reply = server.submit(program(echo("a", "go", "v")))
        assert server.http.get(f"/v1/programs/{reply['id']}/variables/v?wait=0.2").status_code == 202
        (shown,) = server.http.get("/v1/engines").json()["engines"]
        assert not shown["up"]
        assert "gone" in shown["message"]
        engine.come_back()
        assert server.value(reply["id"], "v")


def test_a_folder_of_functions_is_registered(tmp_path: Path) -> None:
    (tmp_path / "shorten.md").write_text(FILE)
    with serving(templates=tmp_path) as server:
        (function,) = server.http.get("/v1/functions").json()["functions"]
        assert (function["name"], function["inputs"], function["outputs"]) == ("shorten", ["chapter"], ["summary"])
        call = {"id": "a", "function": "shorten", "inputs": {"chapter": "one"}, "outputs": {"summary": "v"}}
        assert server.submit({"calls": [call]}, wait=20)["values"]["v"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (FILE.replace("{{ summary }}", "{{ summary"), "bad.md.*line 7"),
        (FILE.replace("max_tokens", "maxtokens"), "bad.md"),
    ],
)
def test_a_bad_function_file_is_said_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "bad.md").write_text(text)
    with pytest.raises(SetupError, match=said) as caught:
        read_templates(tmp_path)
    assert str(caught.value).count("bad.md") == 1
    assert str(caught.value).count("function ") <= 1


def test_a_folder_without_functions_is_said(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="no function files"):
        read_templates(tmp_path)


def test_what_a_live_server_recorded_replays_to_the_same_state(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with serving(FakeEngine(token_s=0.001, max_running=3), journal=path) as server:
        maps = [echo(f"m{i}", f"part {i}", f"s{i}") for i in range(12)]
        reduce = echo("r", [{"var": f"s{i}"} for i in range(12)], "answer")
        programs = [server.submit(program(*maps, reduce), wait=30)["id"] for _ in range(2)]
        served = [server.http.get(f"/v1/programs/{id}/graph").json()["nodes"] for id in programs]
        answers = [server.value(id, "answer") for id in programs]
    header, events = read(path)
    scheduler = Scheduler(header.settings)
    for now_s, event in events:
        scheduler.check(event)
        scheduler.handle(event, now_s)
        scheduler.validate()
    assert scheduler.programs() == programs
    for id, nodes, answer in zip(programs, served, answers, strict=True):
        replayed = scheduler.graph(id).nodes
        assert [(node.node, node.state, node.engine, node.attempt) for node in replayed] == [
            (node["id"], node["state"], node["engine"], node["attempt"]) for node in nodes
        ]
        assert scheduler.variable(id, "answer").outcome.text == answer  # type: ignore[union-attr]


def test_a_journal_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.touch()
    with pytest.raises(SetupError, match=r"journal\.jsonl"):
        asyncio.run(serve(Settings(port=0, journal=path), engines=[FakeEngine()]))


def test_the_settings_choose_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [engine.id for engine in chosen_engines(Settings(engine="fake"))] == ["fake"]
    assert [engine.id for engine in chosen_engines(Settings())] == ["embedded"]
    monkeypatch.setenv("PARROT_SGLANG", "http://127.0.0.1:1, http://127.0.0.1:2")
    monkeypatch.setenv("PARROT_API_KEYS", json.dumps({"secret-key": "ann"}))
    settings = Settings(openai=("http://127.0.0.1:3",))
    assert [engine.id for engine in chosen_engines(settings)] == ["sglang-1", "sglang-2", "openai-1"]
    assert "secret-key" not in repr(settings)
    with pytest.raises(SetupError, match="no engine"):
        chosen_engines(Settings(engine="none", sglang=()))


def test_answers_go_out_at_once() -> None:
    with serving_process() as (_, http):
        seconds = [http.get("/healthz").elapsed.total_seconds() for _ in range(50)]
    assert statistics.median(seconds) < 0.02, "40 ms: the socket waits for the client's acknowledgement"


def test_a_request_that_is_half_sent_when_the_server_stops_is_answered() -> None:
    with serving_process() as (process, http):
        port = int(str(http.base_url).rstrip("/").rpartition(":")[2])
        head = b"POST /v1/programs HTTP/1.1\r\nHost: parrot\r\nContent-Length: 1000\r\n\r\n{"
        with socket.create_connection(("127.0.0.1", port)) as half:
            half.sendall(head)
            http.get("/healthz")  # it has been read by then
            process.send_signal(signal.SIGTERM)
            half.settimeout(20)
            assert half.recv(65_536).startswith(b"HTTP/1.1 503 ")
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
