"""The commands: every parameter counts, JSON has its shape, and wrong use is said in one line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from parrot_server.errors import SetupError
from parrot_server.sim.commands import app
from parrot_server.sim.show import print_rows
from parrot_server.sim.trace import _Call, _Program

PERCENTILES = {"mean", "p50", "p95", "p99"}


def run(*words: str) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.output
    return done.stdout


def rows(*words: str) -> list[dict[str, Any]]:
    found = json.loads(run(*words, "--json"))
    assert set(found) <= {"rows", "paired"}
    for row in found["rows"]:
        assert row["name"]
        assert row["completion_s"] > 0
    return list(found["rows"])


def test_map_reduce() -> None:
    one_by_one, parrot = rows("map-reduce")
    assert (one_by_one["name"], parrot["name"]) == ("latency-critical", "parrot")
    assert {"maps_s", "map_tpot_ms"} <= set(parrot)
    more = rows("map-reduce", "--maps", "64", "--policy", "parrot,fcfs")
    assert [row["name"] for row in more] == ["parrot", "fcfs"]
    assert more[0]["map_tpot_ms"] == pytest.approx(19.37, abs=0.1)
    (short,) = rows(
        "map-reduce", "--policy", "parrot", "--prompt-tokens", "600", "--output-tokens", "25", "--engine", "a100"
    )
    assert short["completion_s"] < parrot["completion_s"]
    loop = rows("map-reduce", "--client-loop", "--rtt-ms", "80", "--queue-ms", "150", "--policy", "fcfs")
    assert loop[0]["round_trips_s"] == pytest.approx(0.23)


def test_chain() -> None:
    a, b, c = rows("chain", "--steps", "10", "--ambient-tpot-ms", "8", "--rtt-ms", "10", "--queue-ms", "50")
    assert [row["name"] for row in (a, b, c)] == ["A", "B", "C"]
    assert {"prefill_s", "decode_s", "round_trips_s"} <= set(a)
    assert a["round_trips_s"] == pytest.approx(9 * 0.06)
    assert a["decode_s"] == pytest.approx(10 * 80 * 0.008, rel=0.01)
    assert "A" in run("chain", "--steps", "3", "--ambient-tpot-ms", "0")


def test_mix() -> None:
    words = ["mix", "--chats", "10", "--agents", "2", "--agent-units", "1600", "--agent-calls", "20"]
    best, fair = rows(*words, "--policy", "shortest-first,program-fair")
    assert best["completion_s"] == best["mean"] < fair["mean"]
    for row in (best, fair):
        assert set(row) >= PERCENTILES
        assert set(row["slowdown"]) == PERCENTILES
        assert set(row["classes"]) == {"agent", "chat"}
        assert set(row["classes"]["chat"]) >= PERCENTILES | {"programs", "share", "slowdown"}
        assert row["classes"]["chat"]["share"] + row["classes"]["agent"]["share"] == pytest.approx(1)
    (real,) = rows(*words, "--policy", "parrot", "--engine", "h100")
    assert real["ttft_ms"]["mean"] > 0
    assert "agent" in run(*words, "--policy", "fcfs")


def test_a_workload_is_written_read_drawn_recorded_and_replayed(tmp_path: Path) -> None:
    trace, picture, journal = (str(tmp_path / name) for name in ("trace.jsonl", "run.svg", "run.journal"))
    run("workload", "multi-agent", "--write", trace)
    (row, _) = rows("trace", trace, "--policy", "parrot,fcfs", "--picture", picture, "--journal", journal)
    assert set(row) >= PERCENTILES | {"slowdown", "classes", "output_tokens_s", "cache_hit", "ttft_ms", "tpot_ms"}
    drawing = ElementTree.parse(picture).getroot()
    assert len(drawing.findall("{http://www.w3.org/2000/svg}rect")) > 100
    first, second = (json.loads(run("replay", journal, "--json")) for _ in range(2))
    assert first == second
    assert first["actions"] > first["events"] > 100


def test_workloads_are_listed_and_compared() -> None:
    assert "fan-out" in run("workload", "list")
    found = json.loads(run("workload", "mixed", "--policy", "parrot,fcfs", "--seeds", "2", "--json"))
    assert {one["kind"] for one in found["paired"]} == {"chat", "map-reduce"}
    assert "paired by seed" in run("workload", "mixed", "--policy", "parrot,fcfs", "--seeds", "2")


def test_tenants_and_starvation() -> None:
    shares = rows("tenants", "--weights", "1,2,4", "--seconds", "30")
    assert [row["wanted"] for row in shares] == pytest.approx([1 / 7, 2 / 7, 4 / 7])
    assert all(row["share"] == pytest.approx(row["wanted"], rel=0.08) for row in shares)
    parrot, fcfs = rows("starvation", "--steps", "20", "--policy", "parrot,fcfs")
    assert parrot["overtaken_s"] <= parrot["bound_s"]
    assert fcfs["overtaken_s"] == 0


def test_retention() -> None:
    lru, pins = rows("retention", "--repeat", "0.9", "--calls", "60", "--programs", "3", "--miss", "0.3")
    assert (lru["name"], pins["name"]) == ("lru", "pins")
    assert pins["gain"] > 1.5 * lru["gain"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["mix", "--policy", "nope"], "no policy 'nope'"),
        (["mix", "--policy", ","], "--policy"),
        (["mix", "--levels", "0"], "--levels"),
        (["mix", "--chats", "0", "--agents", "0"], "nothing to run"),
        (["workload", "nope"], "no workload 'nope'"),
        (["map-reduce", "--engine", "h100-9b"], "no engine 'h100-9b'"),
        (["retention", "--repeat", "1.5"], "--repeat"),
        (["tenants", "--weights", "1,-2"], "--weights"),
        (["trace", "/does/not/exist"], "cannot be read"),
    ],
)
def test_wrong_use_is_said(words: list[str], says: str) -> None:
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, SetupError)
    assert says in str(done.exception)


def test_lists_and_files_have_json_too(tmp_path: Path) -> None:
    listed = json.loads(run("workload", "list", "--json"))["rows"]
    assert {"name", "what"} == set(listed[0])
    path = tmp_path / "workload.jsonl"
    written = json.loads(run("workload", "chain-summary", "--write", str(path), "--json"))["rows"]
    assert written == [{"file": str(path), "programs": 10}]


def test_a_workload_does_not_take_the_place_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "workload.jsonl"
    path.write_text("kept")
    done = CliRunner().invoke(app, ["workload", "chain-summary", "--write", str(path)])
    assert isinstance(done.exception, FileExistsError)
    assert path.read_text() == "kept"


def test_the_help_of_a_trace_names_every_field(tmp_path: Path) -> None:
    shown = run("trace", "--help")
    for field in [*_Program.model_fields, *_Call.model_fields]:
        assert re.search(rf"\b{field}\b", shown), field


def test_tables_have_units_and_plain_numbers() -> None:
    shown = run("mix", "--policy", "shortest-first,longest-first")
    assert "completion mean, units" in shown
    assert "19,000 " in shown
    assert "162,636 " in shown
    assert "e+0" not in shown
    assert "completion mean, s" in run("mix", "--engine", "h100-7b", "--chats", "2", "--agents", "0")


def test_texts_stand_to_the_left_and_numbers_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"name": "a", "what": "long text", "n": 191743}, {"name": "b", "what": "text", "n": 0.5}]
    print_rows(rows, as_json=False)
    *_, first, second = capsys.readouterr().out.splitlines()
    assert first == "a     long text  191,743"
    assert second == "b     text           0.5"
