"""Drawings of points and curves: alternatives, clusters, and the reach of a setting."""

from __future__ import annotations

import math
from itertools import groupby
from typing import TYPE_CHECKING, Literal, TypedDict

from smp_advisor.charts.marks import (
    dot,
    fixed,
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
    from smp_advisor.charts.marks import Scale

__all__ = ["ClusterPoint", "Fit", "Frontier", "Scatter", "Sweep", "frontier", "scatter", "sweep"]


class ClusterPoint(TypedDict):
    """One cluster with its best plan."""

    nodes: int
    time: float
    cost: float
    time_range: tuple[float, float]
    cost_range: tuple[float, float]
    """95 % intervals."""
    mark: str
    """``now`` for the present cluster, ``knee``, or empty."""
    title: str
    row: int
    """Of the table."""


class ClusterLine(TypedDict):
    """Clusters of one instance type, by number of nodes."""

    name: str
    points: list[ClusterPoint]


class Frontier(TypedDict):
    """Lines with their axes."""

    time: str
    """Title of the horizontal axis, with its unit."""
    cost: str
    """Title of the vertical axis, with its unit."""
    lines: list[ClusterLine]
    max_time: float | None
    """Deadline."""
    max_cost: float | None
    """Budget."""


_LEFT = 46
_HEIGHT = 250
_TOP = 24


def frontier(data: Frontier, width: float) -> str:
    """Lines over two logarithmic axes as SVG, `width` pixels wide."""
    points = [point for part in data["lines"] for point in part["points"]]
    shown = [point for point in points if point["mark"] == "now"]
    times = [point["time"] for point in points] + [end for point in shown for end in point["time_range"]]
    costs = [point["cost"] for point in points] + [end for point in shown for end in point["cost_range"]]
    times += [data["max_time"]] if data["max_time"] else []
    costs += [data["max_cost"]] if data["max_cost"] else []
    x = logarithmic(0.9 * min(times), 1.1 * max(times), _LEFT, width - 10)
    y = logarithmic(0.92 * min(costs), 1.08 * max(costs), _HEIGHT, _TOP)
    parts = _axes(data, (0.9 * min(times), 1.1 * max(times)), (0.92 * min(costs), 1.08 * max(costs)), x, y, width)
    for group, part in enumerate(data["lines"]):
        places = [(x(point["time"]), y(point["cost"])) for point in part["points"]]
        parts.append(path(f"smp-curve smp-l{group}", [*places]))
    taken: list[tuple[float, float]] = []
    for group, part in enumerate(data["lines"]):
        for point in part["points"]:
            parts += _point(point, group, x(point["time"]), y(point["cost"]))
            if point["mark"] == "now":
                (early, late), (cheap, dear) = point["time_range"], point["cost_range"]
                parts.append(line("smp-whisker", x(early), y(point["cost"]), x(late), y(point["cost"])))
                parts.append(line("smp-whisker", x(point["time"]), y(cheap), x(point["time"]), y(dear)))
    # The present cluster and the knees first: of labels that overlap, the first remains.
    order = [point for mark in ("now", "knee", "") for point in points if point["mark"] == mark]
    for point in order:
        text = f"{point['nodes']} (knee)" if point["mark"] == "knee" else str(point["nodes"])
        place = (max(x(point["time"]), _LEFT + text_width(text) / 2), y(point["cost"]) + (-10 if point["mark"] else 16))
        reach = text_width(text) / 2 + 10
        if all(abs(place[0] - px) > reach or abs(place[1] - py) > 12 for px, py in taken):
            taken.append(place)
            parts.append(label("smp-tick smp-strong" if point["mark"] else "smp-tick", *place, text, "middle"))
    return frame(width, _HEIGHT + 38, f"{len(points)} clusters by time and cost", parts)


def _axes(
    data: Frontier, times: tuple[float, float], costs: tuple[float, float], x: Scale, y: Scale, width: float
) -> list[str]:
    """Ticks, titles, and the limits."""
    parts = [label("smp-tick", 0, 11, data["cost"])]
    if data["max_time"]:
        parts.append(rect("smp-within", _LEFT, _TOP, x(data["max_time"]) - _LEFT, _HEIGHT - _TOP))
        parts.append(line("smp-limit-mark", x(data["max_time"]), _TOP, x(data["max_time"]), _HEIGHT))
        parts.append(label("smp-text", x(data["max_time"]) - 4, _TOP + 12, "deadline", "end"))
    for value in log_ticks(*costs, 7):
        parts.append(line("smp-grid", _LEFT, y(value), width - 10, y(value)))
        parts.append(label("smp-tick", _LEFT - 6, y(value) + 4, short(value), "end"))
    for value in log_ticks(*times, (width - _LEFT) / 50):
        parts.append(line("smp-grid", x(value), _TOP, x(value), _HEIGHT))
        parts.append(label("smp-tick", x(value), _HEIGHT + 15, short(value), "middle"))
    if data["max_cost"]:
        parts.append(line("smp-limit-mark", _LEFT, y(data["max_cost"]), width - 10, y(data["max_cost"])))
        parts.append(label("smp-text", width - 12, y(data["max_cost"]) - 4, "budget", "end"))
    parts.append(label("smp-text", _LEFT + (width - _LEFT) / 2, _HEIGHT + 32, data["time"], "middle"))
    return parts


def _point(point: ClusterPoint, group: int, x: float, y: float) -> list[str]:
    marked = f" smp-is-{point['mark']}" if point["mark"] else ""
    return [
        dot(f"smp-point smp-g{group}{marked}", x, y, 7 if point["mark"] == "now" else 4.5, point["title"], point["row"])
    ]


class Scatter(TypedDict):
    """Plans as columns."""

    unit: str
    """Of the throughput."""
    free: list[float]
    """Free GiB per GPU."""
    rates: list[float]
    """Throughput."""
    groups: list[int]
    """Positions in `names`."""
    names: list[str]
    """Names of the groups, in the order of their colors."""
    titles: list[str]
    best: int
    """The recommended plan; -1 for none."""
    now: tuple[float, float] | None
    """Free GiB and throughput of the plan on screen."""


_SCATTER_HEIGHT = 240


def scatter(data: Scatter, width: float) -> str:
    """Points over two axes as SVG, `width` pixels wide."""
    now = data["now"]
    free, rates = [*data["free"], *([now[0]] if now else [])], [*data["rates"], *([now[1]] if now else [])]
    low, high = min(*free, 0), max(free) * 1.04
    slow, fast = min(rates), max(rates)
    x = linear(low, high, _LEFT + 8, width - 12)
    y = linear(0 if slow < 0.5 * fast else 0.96 * slow, 1.02 * fast, _SCATTER_HEIGHT, 22)
    parts = [label("smp-tick", 0, 11, data["unit"])]
    for value in ticks(0 if slow < 0.5 * fast else 0.96 * slow, 1.02 * fast, 5):
        parts.append(line("smp-grid", _LEFT, y(value), width, y(value)))
        parts.append(label("smp-tick", _LEFT - 6, y(value) + 4, short(value), "end"))
    for value in ticks(low, high, width / 90):
        parts.append(line("smp-grid", x(value), 22, x(value), _SCATTER_HEIGHT))
        parts.append(label("smp-tick", x(value), _SCATTER_HEIGHT + 15, short(value), "middle"))
    parts.append(label("smp-text", _LEFT + (width - _LEFT) / 2, _SCATTER_HEIGHT + 32, "GiB free per GPU", "middle"))
    for index in reversed(range(len(data["titles"]))):
        style = f"smp-point smp-g{data['groups'][index]}{' smp-best' if index == data['best'] else ''}"
        radius = 6 if index == data["best"] else 4
        place = x(data["free"][index]), y(data["rates"][index])
        parts.append(dot(style, *place, radius, data["titles"][index], index))
    if now:
        title = f"this plan: {short(now[1])} {data['unit']}, {fixed(now[0], 1)} GiB free"
        parts.append(dot("smp-here", x(now[0]), y(now[1]), 8, title))
        side, shift = ("end", -12) if x(now[0]) > width - 80 else ("start", 12)
        parts.append(label("smp-text smp-strong", x(now[0]) + shift, y(now[1]) - 6, "this plan", side))
    description = (
        f"{len(data['titles'])} plans by free memory ({short(min(free))} to {short(max(free))} GiB) and throughput"
    )
    return frame(width, _SCATTER_HEIGHT + 38, f"{description} ({short(slow)} to {short(fast)} {data['unit']})", parts)


Fit = Literal["fits", "risk", "over", "refused"]
"""Fits with the requested probability, with a lower one, does not fit, or cannot be combined."""


class Sweep(TypedDict):
    """Positions of a setting while the others are fixed."""

    label: str
    texts: list[str]
    """Text of each position."""
    unit: str
    """Of the throughput."""
    rates: list[float | None]
    """Throughput; None where the settings cannot be combined."""
    memory: list[float | None]
    """GiB needed per GPU."""
    fits: list[Fit]
    limit: float
    """Usable GiB per GPU."""
    current: int
    recommended: int
    """-1 if it has no position."""


_PANE = 84
_WORDS = {"fits": "fits", "risk": "at risk", "over": "does not fit", "refused": "cannot be combined"}


def sweep(data: Sweep, width: float) -> str:
    """Two panes with a common horizontal axis as SVG, `width` pixels wide."""
    count = len(data["texts"])
    cell = (width - _LEFT - 8) / max(count, 1)
    xs = [_LEFT + cell * (index + 0.5) for index in range(count)]
    runs = [value if state != "over" else None for value, state in zip(data["rates"], data["fits"], strict=True)]
    parts: list[str] = []
    for top, name, values in ((14, data["unit"], runs), (14 + _PANE + 26, "GiB per GPU", data["memory"])):
        is_memory = name == "GiB per GPU"
        numbers = [value for value in values if value is not None]
        most = 1.08 * max([*numbers, data["limit"] if is_memory else 0, 1e-9])
        y = linear(0, most, top + _PANE, top)
        parts += _shades(data, cell, top, is_memory=is_memory)
        parts += _grid(most, y, width, top, name)
        if is_memory:
            parts.append(line("smp-limit-mark", _LEFT, y(data["limit"]), width - 8, y(data["limit"])))
        style = "smp-need" if is_memory else "smp-rate"
        points = [None if value is None else (x, y(value)) for x, value in zip(xs, values, strict=True)]
        parts.append(path(f"smp-curve {style}", points))
        for index, point in enumerate(points):
            if point is not None:
                chosen = " smp-now" if index == data["current"] else ""
                best = " smp-best" if index == data["recommended"] else ""
                radius = 5 if chosen or best else 3
                parts.append(dot(f"smp-dot {style}{chosen}{best}", *point, radius, _title(data, index), index))
    bottom = 14 + 2 * _PANE + 26
    widest = max(text_width(text) for text in data["texts"]) + 8
    every = math.ceil(widest / cell)
    for index in range(0, count, every):
        parts.append(label("smp-tick", xs[index], bottom + 15, data["texts"][index], "middle"))
    parts.append(label("smp-text", _LEFT + (width - _LEFT) / 2, bottom + 32, data["label"], "middle"))
    return frame(width, bottom + 38, f"Throughput and memory at {count} positions", parts)


def _shades(data: Sweep, cell: float, top: float, *, is_memory: bool) -> list[str]:
    """Regions in which the plan does not fit, or is at risk."""
    parts: list[str] = []
    start = 0
    for state, members in groupby(data["fits"]):
        size = len(list(members))
        left = _LEFT + cell * start
        start += size
        if state == "fits":
            continue
        parts.append(rect(f"smp-shade smp-{state}", left, top, cell * size, _PANE))
        names = {"risk": ("at risk", "risk"), "over": ("out of memory", "over"), "refused": ("not possible", "no")}[
            state
        ]
        text = next((name for name in names if cell * size > text_width(name) + 4), "")
        if not is_memory and text:
            middle = left + cell * size / 2
            parts.append(label(f"smp-region smp-in-{state}", middle, top + _PANE - 5, text, "middle"))
    return parts


def _grid(most: float, y: Scale, width: float, top: float, name: str) -> list[str]:
    parts = [label("smp-tick", _LEFT, top - 4, name)]
    for value in ticks(0, most, 3):
        parts.append(line("smp-grid", _LEFT, y(value), width - 8, y(value)))
        parts.append(label("smp-tick", _LEFT - 6, y(value) + 4, short(value), "end"))
    return parts


def _title(data: Sweep, index: int) -> str:
    """Figures of a position: ``32: 278k tokens/s, 29.0 GiB, fits``."""
    rate, memory, state = data["rates"][index], data["memory"][index], data["fits"][index]
    figures = [] if rate is None or state == "over" else [f"{short(rate)} {data['unit']}"]
    figures += [] if memory is None else [f"{fixed(memory, 1)} GiB"]
    notes = ["current"] if index == data["current"] else []
    notes += ["recommended"] if index == data["recommended"] else []
    return f"{data['texts'][index]}: {', '.join([*figures, _WORDS[state], *notes])}"
