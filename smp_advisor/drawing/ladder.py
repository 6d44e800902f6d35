"""The ladder of techniques as bars: memory and step time before and after each. Twin: ``ladder.ts``."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from smp_advisor.drawing.bars import amount
from smp_advisor.drawing.scale import linear
from smp_advisor.drawing.svg import frame, label, line, rect

if TYPE_CHECKING:
    from smp_advisor.drawing.scale import Scale

__all__ = ["LadderBars", "LadderRow", "ladder"]


class LadderRow(TypedDict):
    """One rung."""

    title: str
    memory: float | None
    """GiB needed per GPU; None if there is no such plan."""
    memory_before: float | None
    """Of the plan with which it is compared; None for the first."""
    step: float | None
    """Seconds per step; None if the plan does not fit."""
    step_before: float | None
    fits: bool
    decision: str
    used: bool
    """Whether the plan on screen uses the technique."""
    because: str


class LadderBars(TypedDict):
    """Rungs with the usable memory."""

    limit: float
    rows: list[LadderRow]


_ROW = 30
_NARROW = 700
_CLIP = 2.5
"""Longest bar of memory, in multiples of the limit. Longer ones end with an arrow."""


def ladder(data: LadderBars, width: float) -> str:
    """Rows with two bars each as SVG, `width` pixels wide."""
    narrow = width < _NARROW
    start = 0 if narrow else 0.36 * width
    wide = width - start
    x = linear(0, _CLIP * data["limit"], start, start + 0.32 * wide)
    slowest = max([row["step"] or 0 for row in data["rows"]] + [row["step_before"] or 0 for row in data["rows"]])
    t = linear(0, slowest or 1, start + 0.48 * wide, start + 0.62 * wide)
    parts = [
        label("smp-tick", start, 11, "GiB needed per GPU"),
        label("smp-tick", t(0), 11, "step time"),
    ]
    y = 18.0
    grouped = False
    for row in data["rows"]:
        if not row["used"] and not grouped:
            grouped = True
            parts.append(line("smp-grid", 0, y + 4, width, y + 4))
            parts.append(label("smp-tick", 0, y + 18, "with one change"))
            y += 24
        if narrow:
            parts.append(label("smp-text", 0, y + 13, _cut(row["title"], width)))
            y += 18
        else:
            parts.append(label("smp-text", 0, y + 18, _cut(row["title"], start - 12)))
        parts += _memory(row, data["limit"], x, y)
        if row["step"] is not None:
            if row["step_before"] is not None:
                title = f"before: {amount(row['step_before'], 's')}"
                parts.append(rect("smp-ghost", t(0), y + 4, t(row["step_before"]) - t(0), 18, title))
            title = f"{row['title']}: {amount(row['step'], 's')} per step"
            parts.append(rect("smp-step-bar", t(0), y + 7, t(row["step"]) - t(0), 12, title))
            parts.append(label("smp-tick", t(slowest) + 6, y + 17, amount(row["step"], "s")))
        style = "smp-text smp-is-fit" if row["fits"] else "smp-text smp-is-over"
        parts.append(label(style, width, y + 17, _cut(row["decision"], 0.26 * wide), "end"))
        y += _ROW
    parts.append(line("smp-limit-mark", x(data["limit"]), 16, x(data["limit"]), y))
    usable = f"{amount(data['limit'], 'GiB')} usable"
    parts.append(label("smp-tick", x(data["limit"]), y + 13, usable, "middle"))
    return frame(width, y + 20, f"Memory and step time of {len(data['rows'])} techniques", parts)


def _memory(row: LadderRow, limit: float, x: Scale, y: float) -> list[str]:
    if row["memory"] is None:
        return [label("smp-tick", x(0), y + 17, "no such plan")]
    most = _CLIP * limit
    parts = []
    if row["memory_before"] is not None:
        before, title = min(row["memory_before"], most), f"before: {amount(row['memory_before'], 'GiB')}"
        parts.append(rect("smp-ghost", x(0), y + 4, x(before) - x(0), 18, title))
    title = f"{row['title']}: {amount(row['memory'], 'GiB')}. {row['because']}".rstrip(". ")
    style = "smp-memory-bar smp-is-fit" if row["fits"] else "smp-memory-bar smp-is-over"
    parts.append(rect(style, x(0), y + 7, x(min(row["memory"], most)) - x(0), 12, title))
    arrow = " »" if row["memory"] > most else ""
    parts.append(label("smp-tick", x(most) + 6, y + 17, f"{amount(row['memory'], 'GiB')}{arrow}"))
    return parts


def _cut(text: str, room: float) -> str:
    """The text, cut to the letters that have room."""
    most = int(room / 6.2)
    return text if len(text) <= most else f"{text[: max(most - 1, 1)]}…"
