"""A run as a picture: a bar for each call from its start to its end, a row for each program, a colour for each kind. SVG, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from parrot_server.sim.clients import ProgramRecord

WIDTH, ROW, LEFT, TOP = 1200, 14, 150, 40
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")
MOST_ROWS = 200


def gantt(title: str, records: Sequence[ProgramRecord]) -> str:
    """The programs in the order in which they came, the first 200 of them."""
    shown = sorted(records, key=lambda record: (record.submitted_s, record.shape.id))[:MOST_ROWS]
    kinds = sorted({record.shape.kind for record in records})
    colour = {kind: COLOURS[i % len(COLOURS)] for i, kind in enumerate(kinds)}
    end_s = max((record.ended_s or 0.0 for record in shown), default=0.0) or 1.0
    scale = (WIDTH - LEFT - 10) / end_s
    height = TOP + ROW * len(shown) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="10">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="14" font-size="13">{escape(title)}</text>',
    ]
    for i, kind in enumerate(kinds):
        x = LEFT + 120 * i
        parts.append(f'<rect x="{x}" y="22" width="10" height="10" fill="{colour[kind]}"/>')
        parts.append(f'<text x="{x + 14}" y="31">{escape(kind)}</text>')
    for row, record in enumerate(shown):
        parts += _row(record, TOP + ROW * row, scale, colour[record.shape.kind])
    parts.append(f'<text x="{LEFT}" y="{height - 8}">0 s</text>')
    parts.append(f'<text x="{WIDTH - 10}" y="{height - 8}" text-anchor="end">{end_s:.4g} s</text>')
    return "\n".join([*parts, "</svg>\n"])


def _row(record: ProgramRecord, y: float, scale: float, colour: str) -> list[str]:
    begin, end = LEFT + record.submitted_s * scale, LEFT + (record.ended_s or record.submitted_s) * scale
    parts = [
        f'<text x="{LEFT - 6}" y="{y + 10}" text-anchor="end">{escape(record.shape.id[:24])}</text>',
        f'<line x1="{begin:.1f}" x2="{end:.1f}" y1="{y + 7}" y2="{y + 7}" stroke="#cccccc"/>',
    ]
    for call in record.calls.values():
        x, width = LEFT + call.started_s * scale, max(0.5, (call.ended_s - call.started_s) * scale)
        parts.append(
            f'<rect x="{x:.1f}" y="{y + 2}" width="{width:.1f}" height="10" fill="{colour}" fill-opacity="0.5"/>'
        )
    return parts
