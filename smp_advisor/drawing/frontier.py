"""Days and cost of clusters, one line per instance type. Twin: ``frontier.ts``."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from smp_advisor.drawing.scale import log_ticks, logarithmic, short, text_width
from smp_advisor.drawing.svg import dot, frame, label, line, path, rect

if TYPE_CHECKING:
    from smp_advisor.drawing.scale import Scale

__all__ = ["ClusterPoint", "Frontier", "frontier"]


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
    further: list[str]
    """Instance types that may be added."""
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
    return [dot(f"smp-point smp-g{group}{marked}", x, y, 7 if point["mark"] == "now" else 4.5, point["title"])]
