"""A report as a table for people."""

from __future__ import annotations

import io

from rich.console import Console
from rich.table import Table

from parrot_server.demo.report import Report

WIDTH = 120


def table(report: Report) -> str:
    """A line a call, and one for all of them: the wall time there is the program's, as calls run side by side."""
    shown = Table(box=None, pad_edge=False, show_footer=True)
    shown.add_column("call", footer=f"all {len(report.calls)}")
    shown.add_column("function")
    shown.add_column("objective")
    calls = report.calls
    sums = {
        "queue s": f"{max((call.queue_s for call in calls), default=0):.2f} max",
        "wall s": f"{report.wall_s:.2f}",
        "prompt": f"{sum(call.prompt_tokens for call in calls):,}",
        "cached": f"{sum(call.cached_tokens for call in calls):,}",
        "output": f"{sum(call.output_tokens for call in calls):,}",
    }
    for name, total in sums.items():
        shown.add_column(name, footer=total, justify="right")
    for call in calls:
        figures = (call.prompt_tokens, call.cached_tokens, call.output_tokens)
        times = (f"{call.queue_s:.2f}", f"{call.wall_s:.2f}")
        shown.add_row(call.id, call.function, call.objective, *times, *(f"{figure:,}" for figure in figures))
    return drawn(shown)


def drawn(table: Table) -> str:
    """A table as text."""
    text = io.StringIO()
    Console(file=text, width=WIDTH).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())
