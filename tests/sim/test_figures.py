"""The reference figures: those of a simulator are reached by running the scheduler, the others from its cost model."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from typer.testing import CliRunner

from parrot_server.sim.commands import app
from parrot_server.sim.figures import entries

SIMULATED = {entry["id"]: entry["value"] for entry in entries() if entry["kind"] == "simulator"}


Printed = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def run() -> tuple[Printed, float]:
    """What `figures --json` prints, by id, and the processor's seconds that it took."""
    before = os.times()
    done = CliRunner().invoke(app, ["figures", "--json"])
    after = os.times()
    assert done.exit_code == 0, done.output
    return {row["id"]: row for row in json.loads(done.stdout)}, after.children_user - before.children_user


@pytest.fixture(scope="module")
def printed(run: tuple[Printed, float]) -> Printed:
    return run[0]


def test_every_figure_is_listed_with_its_unit_and_its_printed_value(printed: Printed) -> None:
    assert list(printed) == [entry["id"] for entry in entries()]
    for entry in entries():
        row = printed[entry["id"]]
        assert set(row) == {"id", "value", "unit", "printed"}
        assert (row["unit"], row["printed"]) == (entry["unit"], entry["printed"])


@pytest.mark.parametrize("name", SIMULATED)
def test_a_simulators_figure_is_reached_within_one_percent(name: str, printed: Printed) -> None:
    assert printed[name]["value"] == pytest.approx(SIMULATED[name], rel=0.01)


def test_the_closed_forms_agree_within_a_thousandth(printed: Printed) -> None:
    assert len(entries()) - len(SIMULATED) > 100
    for entry in entries():
        if entry["id"] not in SIMULATED:
            assert printed[entry["id"]]["value"] == pytest.approx(entry["value"], rel=1e-3), entry["id"]


def test_feedback_told_nothing_is_near_the_clairvoyant_best(printed: Printed) -> None:
    assert printed["S09"]["value"] == 19_000
    assert printed["S12"]["value"] <= 20_900


def test_all_figures_cost_less_than_20_s_of_one_processor(run: tuple[Printed, float]) -> None:
    assert run[1] < 20
