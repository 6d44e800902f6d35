"""Drawings of points over two axes."""

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

__all__ = ["Axis", "Point", "plane"]


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
