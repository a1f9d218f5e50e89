"""A comparison as a table for people."""

from __future__ import annotations

from rich.table import Table

from parrot_server.demo.compare import GAINS, Comparison
from parrot_server.demo.table import drawn

EVEN = 1.15  # rates that differ by more are no accident


def compare_table(comparison: Comparison) -> str:
    """A line a configuration, then what each step brings, how many times faster C is, and what the background loses."""
    load = comparison.background
    lines = [
        f"{comparison.program}: {comparison.what}",
        f"round trip {comparison.rtt_ms:g} ms between client and server, "
        f"background of {load.decoders} decoders (seed {load.seed})",
        "",
        drawn(_runs(comparison)),
        "",
        "what each step saves",
    ]
    for name, before, after in GAINS:
        lines.append(f"  {name:12} {before.name:>2} → {after.name:2} {comparison.gains_s[name]:8.2f} s")
    ratios = ", ".join(f"{ratio:.2f} times faster than {name}" for name, ratio in comparison.times_faster.items())
    lines += ["", f"C is {ratios}"]
    if load.decoders:
        loss = comparison.background_loss
        lines.append(f"over the time that B takes, the background makes {-loss:+.1%} tokens beside C against beside B")
        lines += _unevenness(comparison)
    return "\n".join(lines)


def _unevenness(comparison: Comparison) -> list[str]:
    """A warning where the same background alone went faster before one run than before another: then something else ran."""
    rates = [run.background_alone_tokens_s for run in comparison.runs]
    if max(rates) <= EVEN * min(rates):
        return []
    return [
        f"the machine was not as fast for all: alone, the background made {min(rates):.0f} to {max(rates):.0f} tokens/s"
    ]


def _runs(comparison: Comparison) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("configuration")
    for title in ("wall s", "requests", "prompt", "cached", "output"):
        table.add_column(title, justify="right")
    if comparison.background.decoders:
        for title in ("background\ntokens/s alone", "beside\nit", "held up\nfor s"):
            table.add_column(title, justify="right")
    for run in comparison.runs:
        cells = [run.name, run.what, f"{run.wall_s:.2f}", f"{run.requests}"]
        cells += [f"{tokens:,}" for tokens in (run.prompt_tokens, run.cached_tokens, run.output_tokens)]
        if comparison.background.decoders:
            figures = (run.background_alone_tokens_s, run.background_tokens_s, run.background_lost_s)
            cells += [f"{round(figure, 1) + 0.0:.1f}" for figure in figures]  # no minus before a zero
        table.add_row(*cells)
    return table
