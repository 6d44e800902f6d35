"""Drawings: bars, and points over two axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from smp_advisor.marks import (
    dot,
    frame,
    label,
    line,
    linear,
    log_ticks,
    logarithmic,
    path,
    rect,
    short,
    text_width,
    ticks,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.marks import Scale

__all__ = ["Axis", "Bar", "Point", "amount", "bars", "key_of", "plane"]


class Bar(NamedTuple):
    """One stacked bar."""

    label: str
    parts: Sequence[float]
    total: float
    """Sum of the parts before rounding."""
    ghost: float | None = None
    """Total of the recommended plan."""
    interval: tuple[float, float, float] | None = None
    """Low end, middle and high end of the 95 % interval of the memory needed."""
    is_peak: bool = False
    """Whether the stage with the highest peak is among those of the bar."""


_BAR = 22


def bars(names: Sequence[str], rows: Sequence[Bar], unit: str, limit: float | None, width: float) -> str:
    """Bars of the parts with these names as SVG, `width` pixels wide, next to the usable memory if there is a limit.

    Views draw their own bars, which move with the controls (`js/src/charts/bars.ts`).
    """
    left = min(max(text_width(row.label) for row in rows) + 8, 0.3 * width) if len(rows) > 1 else 0
    most = max(limit or 0, *(max(row.total, row.ghost or 0, *(row.interval or ())) for row in rows))
    x = linear(0, most if limit is None else 1.02 * most, left, width - 62)
    parts: list[str] = []
    texts = []
    y = 4.0 if limit is None else 22.0
    for row in rows:
        if left:
            room = int((left - 8) / 6.2)
            text = row.label if len(row.label) <= room else f"{row.label[: room - 1]}…"
            parts.append(label("smp-text", 0, y + 15, text))
        start = 0.0
        for index, value in enumerate(row.parts):
            if value > 0:
                title = f"{names[index]}: {amount(value, unit, row.total)}"
                parts.append(rect(f"smp-part smp-c{index}", x(start), y, x(start + value) - x(start), _BAR, title))
                start += value
        # The allocator's reserve fills a GPU exactly, and rounding does not count.
        over = limit is not None and row.total - limit > 0.006
        if over and limit is not None:
            title = f"{amount(row.total - limit, unit)} over the usable memory"
            parts.append(rect("smp-excess", x(limit), y + _BAR, x(row.total) - x(limit), 3, title))
        if row.ghost is not None:
            title = f"recommended: {amount(row.ghost, unit)}"
            parts.append(rect("smp-ghost", x(0), y - 3, x(row.ghost) - x(0), _BAR + 6, title))
        style = "smp-total smp-over" if over else "smp-total"
        parts.append(label(style, width, y + 15, amount(row.total, unit), "end"))
        of = "" if limit is None else f" of {limit:.1f} {unit} usable"
        key = filter(None, key_of(names, row.parts, unit))
        texts.append(f"{row.label}: {amount(row.total, unit)}{of}: {', '.join(key)}")
        y += _BAR + 8
        if row.interval:
            low, middle, high = (max(end, 0.0) for end in row.interval)
            title = f"{amount(middle, unit)} needed, 95 %: {low:.1f} to {high:.1f} {unit}"
            parts.append(line("smp-whisker", x(low), y, x(high), y, title))
            parts += [line("smp-whisker", x(end), y - 4, x(end), y + 4) for end in (low, high)]
            parts.append(dot("smp-middle", x(middle), y, 3, title))
            y += 10
    if limit is not None:
        usable = f"{limit:.1f} {unit} usable"
        half = text_width(usable) / 2
        parts.append(line("smp-limit-mark", x(limit), 14, x(limit), y))
        parts.append(label("smp-text", min(max(x(limit), half), width - half), 11, usable, "middle"))
    return frame(width, y, "; ".join(texts), parts)


def key_of(names: Sequence[str], values: Sequence[float], unit: str) -> tuple[str, ...]:
    """Names of the parts with their sizes; empty for those too small to see."""
    total = sum(values)
    least = 0.0005 * total if unit == "s" else 0.005
    return tuple(
        f"{name} {amount(value, unit, total)}" if value > 0 and value >= least else ""
        for name, value in zip(names, values, strict=True)
    )


def amount(value: float, unit: str, total: float | None = None) -> str:
    """A size or a time. Parts of one time are all in seconds or all in milliseconds.

    Parameters
    ----------
    total
        Sum of which the value is a part.
    """
    if unit != "s":
        return f"{value:.{2 if value < 0.1 else 1}f} {unit}"
    milliseconds = 1000 * value
    if (value if total is None else total) < 0.9995:
        return f"{milliseconds:.2g} ms" if milliseconds < 9.95 else f"{milliseconds:.0f} ms"
    return f"{value:.{3 if value < 0.1 else 2}f} s" if value < 100 else f"{value:,.0f} s"


class Axis(NamedTuple):
    """An axis of points."""

    title: str
    """With its unit."""
    low: float
    high: float
    is_log: bool = False
    limit: tuple[str, float] | None = None
    """Name and value of a limit."""


class Point(NamedTuple):
    """One point with its figures."""

    x: float
    y: float
    style: str
    title: str
    text: str = ""
    """Label; of labels that overlap, that of the largest point remains."""
    radius: float = 4.5
    row: int | None = None
    """Of the table."""
    ranges: tuple[tuple[float, float], tuple[float, float]] | None = None
    """95 % intervals of both values."""


_LEFT, _TOP, _HEIGHT = 46, 24, 250


def plane(
    across: Axis,
    up: Axis,
    points: Sequence[Point],
    curves: Sequence[tuple[str, Sequence[Point]]],
    description: str,
    width: float,
) -> str:
    """Points, and curves through points, over two axes as SVG, `width` pixels wide."""
    right = width - 12
    x, y = _scale(across, _LEFT + 8, right), _scale(up, _HEIGHT, _TOP)
    parts = [label("smp-tick", 0, 11, up.title)]
    if across.limit:
        name, value = across.limit
        parts.append(rect("smp-within", _LEFT, _TOP, x(value) - _LEFT, _HEIGHT - _TOP))
        parts.append(line("smp-limit-mark", x(value), _TOP, x(value), _HEIGHT))
        parts.append(label("smp-text", x(value) - 4, _TOP + 12, name, "end"))
    for value in _ticks(up, 6):
        parts.append(line("smp-grid", _LEFT, y(value), right, y(value)))
        parts.append(label("smp-tick", _LEFT - 6, y(value) + 4, short(value), "end"))
    for value in _ticks(across, (width - _LEFT) / 60):
        parts.append(line("smp-grid", x(value), _TOP, x(value), _HEIGHT))
        parts.append(label("smp-tick", x(value), _HEIGHT + 15, short(value), "middle"))
    if up.limit:
        name, value = up.limit
        parts.append(line("smp-limit-mark", _LEFT, y(value), right, y(value)))
        parts.append(label("smp-text", right, y(value) - 4, name, "end"))
    parts.append(label("smp-text", _LEFT + (width - _LEFT) / 2, _HEIGHT + 32, across.title, "middle"))
    parts += [path(style, [(x(point.x), y(point.y)) for point in line_]) for style, line_ in curves]
    taken: list[tuple[float, float]] = []
    for point in sorted(points, key=lambda point: point.radius):
        parts.append(dot(point.style, x(point.x), y(point.y), point.radius, point.title, point.row))
        if point.ranges:
            (early, late), (low, high) = point.ranges
            parts.append(line("smp-whisker", x(early), y(point.y), x(late), y(point.y)))
            parts.append(line("smp-whisker", x(point.x), y(low), x(point.x), y(high)))
    for point in sorted(points, key=lambda point: -point.radius):
        half = text_width(point.text) / 2
        place = min(max(x(point.x), _LEFT + half), width - half), y(point.y) + (-12 if point.radius > 5 else 16)
        if point.text and all(abs(place[0] - px) > half + 10 or abs(place[1] - py) > 12 for px, py in taken):
            taken.append(place)
            parts.append(label("smp-tick smp-strong" if point.radius > 5 else "smp-tick", *place, point.text, "middle"))
    return frame(width, _HEIGHT + 38, description, parts)


def _scale(axis: Axis, start: float, end: float) -> Scale:
    return (logarithmic if axis.is_log else linear)(axis.low, axis.high, start, end)


def _ticks(axis: Axis, count: float) -> list[float]:
    return (log_ticks if axis.is_log else ticks)(axis.low, axis.high, count)
