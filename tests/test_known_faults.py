"""The list of known faults names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_every_test_that_the_list_names_is_there() -> None:
    named = NAMED.findall((ROOT / "docs/faults.md").read_text())
    assert len(named) > 80
    for path, name in named:
        nodes = ast.walk(ast.parse((ROOT / path).read_text()))
        names = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
        assert name in names, f"{path} has no {name}"
