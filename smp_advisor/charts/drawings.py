"""Drawings: bars, the schedule of a step, points over two axes, and ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypedDict

from smp_advisor.charts.marks import (
    dot,
    fixed,
    frame,
    grouped,
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

    from smp_advisor.charts.marks import Scale

__all__ = ["Axis", "BarRow", "Bars", "Point", "RankColumn", "Span", "amount", "bars", "gantt", "plane", "ranks"]


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


class Span(NamedTuple):
    """Work of one pipeline stage."""

    part: int
    """Part of the step, by its color."""
    start: float
    seconds: float
    title: str


_LANE = 22


def gantt(rows: Sequence[tuple[str, Sequence[Span]]], seconds: float, description: str, width: float) -> str:
    """Names of stages with their work over the `seconds` of a step as SVG, `width` pixels wide."""
    left = max(text_width(name) for name, _ in rows) + 8
    x = linear(0, seconds, left, width - 8)
    parts: list[str] = []
    for position, (name, spans) in enumerate(rows):
        y = 4.0 + _LANE * position
        idle = max(1 - sum(span.seconds for span in spans) / seconds, 0)
        parts.append(label("smp-text", 0, y + 13, name))
        title = f"{name}: idle {fixed(100 * idle, 1)} % of the step"
        parts.append(rect("smp-idle", left, y, width - 8 - left, _LANE - 4, title))
        for span in spans:
            wide = x(span.start + span.seconds) - x(span.start)
            parts.append(rect(f"smp-pass smp-c{span.part}", x(span.start), y, wide, _LANE - 4, span.title))
    bottom = 4.0 + _LANE * len(rows)
    scale, unit = (1, "s") if seconds >= 1 else (1000, "ms")
    parts.append(line("smp-axis", left, bottom, width - 8, bottom))
    for value in ticks(0, scale * seconds, (width - left) / 80):
        at = x(value / scale)
        side = "end" if at > width - 30 else "middle" if value else "start"
        parts.append(line("smp-axis", at, bottom, at, bottom + 4))
        parts.append(label("smp-tick", at, bottom + 15, f"{short(value)} {unit}", side))
    return frame(width, bottom + 20, description, parts)


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


class RankColumn(NamedTuple):
    """One number per GPU."""

    name: str
    """``stage``, ``tensor slice``, ``shard``, ``replica``."""
    letter: str
    values: list[int]


_COLORS = 8
_GAP = 3


def ranks(columns: Sequence[RankColumn], nodes: int, per_node: int, by: int, description: str, width: float) -> str:
    """The first nodes with their GPUs, in the colors of column `by`, as SVG, `width` pixels wide."""
    detailed = nodes <= 4
    lanes = 1 if detailed else max(int(width // 300), 1)
    box = width / lanes
    left = 58
    across = min(per_node, 8)
    cell = (box - left - 12) / across
    high = 32 if detailed else 18
    tall = -(-per_node // across) * (high + _GAP) + 8
    parts: list[str] = []
    for index in range(nodes * per_node):
        node, gpu = divmod(index, per_node)
        x, y = box * (node % lanes), 4 + tall * (node // lanes)
        if gpu == 0:
            parts.append(label("smp-text", x, y + 13, f"Node {node}"))
        texts = [f"{column.name} {column.values[index]}" for column in columns]
        title = f"Node {node}, GPU {gpu}, rank {index}: {', '.join(texts) or 'the entire model'}"
        color = columns[by].values[index] % _COLORS if columns else 0
        cx, cy = x + left + cell * (gpu % across), y + (high + _GAP) * (gpu // across)
        parts.append(rect(f"smp-gpu smp-r{color}", cx, cy, cell - _GAP, high, title))
        codes = [f"{column.letter}{column.values[index]}" for column in columns]
        lines = [" ".join(codes[:2]), " ".join(codes[2:4])] if detailed else codes[by : by + 1]
        for place, text in enumerate(lines if detailed or cell > 24 else ()):
            parts.append(label(f"smp-code smp-o{color}", cx + (cell - _GAP) / 2, cy + 13 + 13 * place, text, "middle"))
    return frame(width, 4 + tall * -(-nodes // lanes), description, parts)
