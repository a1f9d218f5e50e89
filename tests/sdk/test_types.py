"""The SDK is typed: a strict type checker infers what calls give, and finds mistakes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SAMPLE = Path(__file__).parent / "typed_sample.py"


def check(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--warn-unused-ignores", "--follow-imports=silent", str(path)]
    return subprocess.run(command, capture_output=True, text=True, cwd=SAMPLE.parents[2])


def test_mypy_infers_the_types_and_finds_the_mistakes(tmp_path: Path) -> None:
    """Each mistake carries an ignore, and one that is not needed is an error too; so is a type that is not inferred."""
    result = check(SAMPLE)
    assert result.returncode == 0, result.stdout + result.stderr
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        SAMPLE.read_text().replace(
            'assert_type(summarize("text"), Variable[str])', 'assert_type(summarize("text"), str)'
        )
    )
    result = check(wrong)
    assert result.returncode == 1
    assert "assert-type" in result.stdout
