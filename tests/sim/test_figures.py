"""The reference figures: those of a simulator are reached by running the scheduler, the others from its cost model."""

from __future__ import annotations

import json
import time

import pytest
from typer.testing import CliRunner

from parrot_server.sim.closed_forms import closed_forms
from parrot_server.sim.commands import app
from parrot_server.sim.figures import entries, simulate


def test_the_simulators_figures_are_reached_within_one_percent() -> None:
    begun_s = time.process_time()
    reached = simulate()
    assert time.process_time() - begun_s < 20
    wanted = {entry["id"]: entry["value"] for entry in entries() if entry["kind"] == "simulator"}
    assert len(wanted) == 12
    assert set(reached) == set(wanted)
    for name, value in wanted.items():
        assert reached[name] == pytest.approx(value, rel=0.01), name
    assert reached["S12"] <= 20_900


def test_the_closed_forms_agree_within_a_thousandth() -> None:
    printed = {entry["id"]: entry["value"] if entry["printed"] is None else entry["printed"] for entry in entries()}
    computed = closed_forms(printed)
    simulated = {entry["id"] for entry in entries() if entry["kind"] == "simulator"}
    assert set(computed) | simulated == {entry["id"] for entry in entries()}
    for entry in entries():
        if entry["id"] in computed:
            assert computed[entry["id"]]() == pytest.approx(entry["value"], rel=1e-3), entry["id"]


def test_the_command_lists_every_figure() -> None:
    done = CliRunner().invoke(app, ["figures", "--json"])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    assert [row["id"] for row in rows] == [entry["id"] for entry in entries()]
    assert all(set(row) == {"id", "value", "unit", "printed"} for row in rows)
