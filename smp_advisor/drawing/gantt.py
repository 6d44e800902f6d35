"""The schedule of a step: passes of every pipeline stage over time. Twin: ``gantt.ts``."""

from __future__ import annotations

from typing import TypedDict

from smp_advisor.drawing.bars import amount
from smp_advisor.drawing.scale import fixed, linear, short, text_width, ticks
from smp_advisor.drawing.svg import frame, label, line, rect

__all__ = ["Gantt", "GanttRow", "gantt"]


class GanttRow(TypedDict):
    """One pipeline stage."""

    label: str
    spans: list[tuple[int, float, float, int]]
    """Part of the step (a position in `Gantt.names`), start and length in seconds, and microbatch (-1 for none)."""


class Gantt(TypedDict):
    """A step."""

    names: list[str]
    """Names of the parts, in the order of their colors."""
    rows: list[GanttRow]
    seconds: float
    """Length of the axis."""
    description: str


_ROW = 22


def gantt(data: Gantt, width: float) -> str:
    """Rows over a time axis as SVG, `width` pixels wide."""
    left = max(text_width(row["label"]) for row in data["rows"]) + 8
    x = linear(0, data["seconds"], left, width - 8)
    parts: list[str] = []
    for position, row in enumerate(data["rows"]):
        y = 4.0 + _ROW * position
        busy = sum(span[2] for span in row["spans"])
        idle = max(1 - busy / data["seconds"], 0)
        parts.append(label("smp-text", 0, y + 13, row["label"]))
        title = f"{row['label']}: idle {fixed(100 * idle, 1)} % of the step"
        parts.append(rect("smp-idle", left, y, width - 8 - left, _ROW - 4, title))
        for part, start, length, microbatch in row["spans"]:
            of = f"microbatch {microbatch + 1}, " if microbatch >= 0 else ""
            title = f"{row['label']}, {of}{data['names'][part]}: {amount(length, 's')}, from {amount(start, 's')}"
            parts.append(rect(f"smp-pass smp-c{part}", x(start), y, x(start + length) - x(start), _ROW - 4, title))
    bottom = 4.0 + _ROW * len(data["rows"])
    scale, unit = (1, "s") if data["seconds"] >= 1 else (1000, "ms")
    parts.append(line("smp-axis", left, bottom, width - 8, bottom))
    for value in ticks(0, scale * data["seconds"], (width - left) / 80):
        at = x(value / scale)
        text = f"{short(value)} {unit}"
        parts.append(line("smp-axis", at, bottom, at, bottom + 4))
        parts.append(
            label("smp-tick", at, bottom + 15, text, "end" if at > width - 30 else "middle" if value else "start")
        )
    return frame(width, bottom + 20, data["description"], parts)
