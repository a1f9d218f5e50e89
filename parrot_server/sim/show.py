"""What `parrot simulate` prints: tables for people, JSON for machines. `columns` pairs a head with the path of its value in a row."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

COLUMNS = [
    ("policy", "name"),
    ("completion mean, {unit}", "mean"),
    ("p50", "p50"),
    ("p95", "p95"),
    ("p99", "p99"),
    ("slowdown", "slowdown.mean"),
    ("p95", "slowdown.p95"),
    ("tokens/s", "output_tokens_s"),
    ("cache hit", "cache_hit"),
    ("TTFT ms", "ttft_ms.mean"),
    ("TPOT ms", "tpot_ms.mean"),
]

WHOLE_FROM = 99_999.5  # five digits would leave something of what stands before the point to an exponent


def print_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Rows that all have the same figures."""
    if as_json:
        print_json({"rows": rows})
    else:
        print_table(rows, [(name.replace("_", " "), name) for name in rows[0]])


def print_reports(
    rows: list[dict[str, Any]],
    as_json: bool,
    more: Sequence[tuple[str, str]] = (),
    paired: Sequence[dict[str, Any]] = (),
    unit: str = "s",
) -> None:
    """Reports of policies: all programs, then class by class, then how the first policy compares. `unit` is of completions."""
    if as_json:
        print_json({"rows": rows, **({"paired": paired} if paired else {})})
        return
    print_table(rows, [*((head.format(unit=unit), path) for head, path in COLUMNS), *more])
    for kind in rows[0]["classes"]:
        heads = [
            ("programs", "programs"),
            ("share", "share"),
            (f"mean, {unit}", "mean"),
            ("p50", "p50"),
            ("p95", "p95"),
            ("p99", "p99"),
        ]
        slow = [("slowdown", "slowdown.mean"), ("p95", "slowdown.p95")]
        print(f"\n{kind}")
        print_table(rows, [("policy", "name"), *((head, f"classes.{kind}.{path}") for head, path in heads + slow)])
    if paired:
        print(
            f"\nMean completion under {paired[0]['policy']} over that under others, paired by seed, with 95% intervals"
        )
        columns = [
            ("class", "kind"),
            ("against", "against"),
            ("ratio", "ratio.mean"),
            ("from", "ratio.low"),
            ("to", "ratio.high"),
        ]
        print_table(list(paired), columns)


def print_table(rows: list[dict[str, Any]], columns: Sequence[tuple[str, str]]) -> None:
    """Rows as a table, texts to the left and numbers to the right; a value that is not there is blank."""
    texts = [any(isinstance(_value(row, path), str) for row in rows) for _, path in columns]
    cells = [[head for head, _ in columns]]
    cells += [[_cell(row, path) for _, path in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for number, line in enumerate(cells):
        aligned = [
            cell.ljust(width) if text else cell.rjust(width)
            for cell, width, text in zip(line, widths, texts, strict=True)
        ]
        print("  ".join(aligned).rstrip())
        if not number:
            print("  ".join("-" * width for width in widths))


def _value(row: dict[str, Any], path: str) -> Any:
    value: Any = row
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _cell(row: dict[str, Any], path: str) -> str:
    value = _value(row, path)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    whole = isinstance(value, int) or abs(value) >= WHOLE_FROM
    return f"{value:,.0f}" if whole else f"{value:,.5g}"


def print_json(value: Any) -> None:
    """A value as JSON."""
    print(json.dumps(_without_nan(value), indent=2))


def _without_nan(value: Any) -> Any:
    """What is not a number has no JSON: null."""
    if isinstance(value, dict):
        return {name: _without_nan(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and value != value else value
