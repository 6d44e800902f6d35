"""Stacked bars: memory of pipeline stages next to the limit, and the parts of a step. Twin: ``bars.ts``."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from smp_advisor.drawing.scale import fixed, grouped, linear, short, text_width, ticks
from smp_advisor.drawing.svg import dot, frame, label, line, rect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.drawing.scale import Scale

__all__ = ["BarRow", "Bars", "amount", "bars", "beyond", "listed"]


class BarRow(TypedDict):
    """One bar."""

    label: str
    parts: list[float]
    total: float
    """Sum of the parts before rounding."""
    ghost: float | None
    """Total of the previous state."""
    interval: tuple[float, float, float] | None
    """Low end, middle and high end of the 95 % interval of the memory needed."""


class Bars(TypedDict):
    """Bars with a common axis."""

    unit: str
    """``GiB`` or ``s``."""
    names: list[str]
    """Names of the parts."""
    rows: list[BarRow]
    limit: float | None
    """Usable memory."""
    nominal: float | None
    """Nominal memory."""


_BAR = 22
_AXIS = 20


def bars(data: Bars, width: float) -> str:
    """Bars as SVG, `width` pixels wide."""
    unit, rows, limit, nominal = data["unit"], data["rows"], data["limit"], data["nominal"]
    left = min(max(text_width(row["label"]) for row in rows) + 8, 0.3 * width) if len(rows) > 1 else 0
    right = width - 62
    most = [limit or 0, nominal or 0, *(max(row["total"], row["ghost"] or 0) for row in rows)]
    high = [row["interval"][2] for row in rows if row["interval"]]
    full = 1.02 * max(*most, *high) if high or limit else max(most)
    x = linear(0, full, left, right)
    top = 18 if limit else 2
    parts: list[str] = []
    y = top + 4.0
    for row in rows:
        if left:
            room = int((left - 8) / 6.2)
            text = row["label"] if len(row["label"]) <= room else f"{row['label'][: room - 1]}…"
            parts.append(label("smp-text", 0, y + 15, text))
        parts += _bar(data, row, x, y)
        over = limit is not None and beyond(row["total"], limit) > 0
        total = amount(row["total"], unit)
        parts.append(label("smp-total smp-over" if over else "smp-total", width, y + 15, total, "end"))
        y += _BAR + 8
        if row["interval"]:
            parts += _whisker(row["interval"], unit, x, y)
            y += 10
    if limit is not None:
        if nominal and nominal > limit:
            parts.append(line("smp-nominal", x(nominal), top, x(nominal), y))
        usable = f"{fixed(limit, 1)} {unit} usable"
        side = "end" if x(limit) + text_width(usable) / 2 > width else "middle"
        parts.append(line("smp-limit-mark", x(limit), top - 4, x(limit), y))
        parts.append(label("smp-text", min(x(limit), width), 11, usable, side))
    parts += _axis(full, unit, x, y, right)
    return frame(width, y + _AXIS, _description(data), parts)


def _bar(data: Bars, row: BarRow, x: Scale, y: float) -> list[str]:
    """Its parts, the ghost of the previous state, and the part beyond the limit."""
    unit, limit = data["unit"], data["limit"]
    parts: list[str] = []
    start = 0.0
    for index, value in enumerate(row["parts"]):
        if value > 0:
            title = f"{data['names'][index]}: {amount(value, unit, row['total'])}"
            parts.append(rect(f"smp-part smp-c{index}", x(start), y, x(start + value) - x(start), _BAR, title))
            start += value
    if limit is not None and (excess := beyond(row["total"], limit)):
        title = f"{amount(excess, unit)} over the usable memory"
        parts.append(rect("smp-excess", x(limit), y + _BAR, x(row["total"]) - x(limit), 3, title))
    if row["ghost"] is not None:
        title = f"before: {amount(row['ghost'], unit)}"
        parts.append(rect("smp-ghost", x(0), y - 3, x(row["ghost"]) - x(0), _BAR + 6, title))
    return parts


def _whisker(interval: tuple[float, float, float], unit: str, x: Scale, y: float) -> list[str]:
    low, middle, high = (max(end, 0.0) for end in interval)
    title = f"{amount(middle, unit)} needed, 95 %: {fixed(low, 1)} to {fixed(high, 1)} {unit}"
    return [
        line("smp-whisker", x(low), y, x(high), y, title),
        line("smp-whisker", x(low), y - 4, x(low), y + 4),
        line("smp-whisker", x(high), y - 4, x(high), y + 4),
        dot("smp-middle", x(middle), y, 3, title),
    ]


def _axis(full: float, unit: str, x: Scale, y: float, right: float) -> list[str]:
    parts = [line("smp-axis", x(0), y, right, y)]
    for value in ticks(0, full, (right - x(0)) / 70):
        parts.append(line("smp-axis", x(value), y, x(value), y + 4))
        parts.append(label("smp-tick", x(value), y + 15, short(value), "middle" if value else "start"))
    parts.append(label("smp-tick", right + 62, y + 15, unit, "end"))
    return parts


def _description(data: Bars) -> str:
    unit, limit = data["unit"], data["limit"]
    texts = []
    for row in data["rows"]:
        of = f" of {fixed(limit, 1)} {unit} usable" if limit is not None else ""
        total = fixed(row["total"], 1) if limit is not None else amount(row["total"], unit)
        texts.append(f"{row['label']}: {total}{of}: {listed(data['names'], row['parts'], unit)}")
    return "; ".join(texts)


def listed(names: Sequence[str], values: Sequence[float], unit: str) -> str:
    """The parts as text. Those too small to see are omitted."""
    total = sum(values)
    return ", ".join(
        f"{name} {amount(value, unit, total)}"
        for name, value in zip(names, values, strict=False)
        if value > 0 and value >= (0.0005 * total if unit == "s" else 0.005)
    )


def beyond(total: float, limit: float) -> float:
    """Excess of a total over its limit. The allocator's reserve fills a GPU exactly, and rounding does not count."""
    return total - limit if total - limit > 0.006 else 0.0


def amount(value: float, unit: str, total: float | None = None) -> str:
    """A size or a time. Parts of one time are all in seconds or all in milliseconds.

    Parameters
    ----------
    total
        Sum of which the value is a part.
    """
    if unit != "s":
        return f"{fixed(value, 2 if value < 0.1 else 1)} {unit}"
    milliseconds = 1000 * value
    if (value if total is None else total) < 0.9995:
        return f"{milliseconds:.2g} ms" if milliseconds < 9.95 else f"{fixed(milliseconds, 0)} ms"
    return f"{fixed(value, 3 if value < 0.1 else 2)} s" if value < 100 else f"{grouped(value)} s"
