"""Workloads in files come back as they were, and a fault in one is named with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from parrot_server.errors import SetupError
from parrot_server.sim.presets import PRESETS, preset
from parrot_server.sim.trace import read_trace, trace_lines


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_is_the_same_for_its_seed_and_comes_back_from_a_file(name: str, tmp_path: Path) -> None:
    programs = preset(name, 1)
    assert programs == preset(name, 1)
    assert len({program.id for program in programs}) == len(programs)
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(trace_lines(programs)))
    assert read_trace(path) == programs


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"id": "p"}', "line 2: calls"),
        ('{"id": "p", "calls": []}', "line 2: calls"),
        ('{"id": "p", "calls": [{"id": "a", "own_tokens": -1, "output_tokens": 1}]}', "calls.0.own_tokens"),
        ('{"id": "p", "calls": [{"id": "a", "own_tokens": 1, "output_tokens": 0}]}', "calls.0.output_tokens"),
        ('{"id": "p", "calls": [{"id": "a", "own_tokens": 0, "output_tokens": 1}]}', "no prompt"),
        ('{"id": "p", "calls": [{"id": "a", "own_tokens": 1, "output_tokens": 1, "reads": ["b"]}]}', "waits for 'b'"),
        ('{"id": "p", "calls": [{"id": "a", "own_tokens": 1, "output_tokens": 1, "colour": 1}]}', "colour"),
        ('{"id": "first", "calls": [{"id": "a", "own_tokens": 1, "output_tokens": 1}]}', "already"),
        ("not json", "line 2"),
    ],
)
def test_a_fault_is_named_with_its_line(line: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"id": "first", "calls": [{"id": "a", "own_tokens": 1, "output_tokens": 1}]}\n' + line)
    with pytest.raises(SetupError, match=says):
        read_trace(path)


def test_a_file_that_is_not_there_or_empty_is_said(tmp_path: Path) -> None:
    for content in (None, "\n"):
        path = tmp_path / "trace.jsonl"
        if content is not None:
            path.write_text(content)
        with pytest.raises(SetupError, match=r"trace\.jsonl"):
            read_trace(path)
