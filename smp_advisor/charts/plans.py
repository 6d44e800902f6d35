"""Charts of plans and clusters: points over two axes."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from itertools import groupby
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from smp_advisor.charts.chart import Chart
from smp_advisor.charts.step import plan_text
from smp_advisor.core.tables import number
from smp_advisor.errors import AdvisorError
from smp_advisor.marks import dot, frame, label, line, log_ticks, logarithmic, path, rect, short, text_width
from smp_advisor.marks import number as pixels
from smp_advisor.search.clusters import ClusterSize, Limits, suitable
from smp_advisor.search.search import SearchResult, listed_plans, representatives
from smp_advisor.search.sizes import ClusterSizes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smp_advisor.advice.recommendation import Recommendation
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.libraries.plan import Plan


class Axis(NamedTuple):
    """An axis with equal distances for equal ratios."""

    title: str
    """With its unit."""
    low: float
    high: float
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
_MARKS = (
    (dot("smp-here", 8, 5, 4), "this cluster"),
    ("".join(line("smp-whisker", *ends) for ends in ((1, 5, 15, 5), (1, 1, 1, 9), (15, 1, 15, 9))), "95 % interval"),
)
"""Of the legend, in 16 by 10 pixels, with their meaning."""


def plane(
    across: Axis,
    up: Axis,
    points: Sequence[Point],
    curves: Sequence[tuple[str, Sequence[Point]]],
    description: str,
    width: float,
) -> str:
    """Points, and curves with names through points, over two axes as SVG, `width` pixels wide."""
    right = width - 12
    x, y = (
        logarithmic(axis.low, axis.high, *ends) for axis, ends in ((across, (_LEFT + 8, right)), (up, (_HEIGHT, _TOP)))
    )
    parts = [label("smp-tick", 0, 11, up.title)]
    if across.limit:
        name, value = across.limit
        parts.append(rect("smp-within", _LEFT, _TOP, x(value) - _LEFT, _HEIGHT - _TOP))
        parts.append(line("smp-limit-mark", x(value), _TOP, x(value), _HEIGHT))
        parts.append(label("smp-text", x(value) - 4, _TOP + 12, name, "end"))
    for value in log_ticks(up.low, up.high, 6):
        parts.append(line("smp-grid", _LEFT, y(value), right, y(value)))
        parts.append(label("smp-tick", _LEFT - 6, y(value) + 4, short(value), "end"))
    for value in log_ticks(across.low, across.high, (width - _LEFT) / 60):
        parts.append(line("smp-grid", x(value), _TOP, x(value), _HEIGHT))
        parts.append(label("smp-tick", x(value), _HEIGHT + 15, short(value), "middle"))
    if up.limit:
        name, value = up.limit
        parts.append(line("smp-limit-mark", _LEFT, y(value), right, y(value)))
        parts.append(label("smp-text", right, y(value) - 4, name, "end"))
    parts.append(label("smp-text", _LEFT + (width - _LEFT) / 2, _HEIGHT + 32, across.title, "middle"))
    for group, (_, of) in enumerate(curves):
        parts.append(path(f"smp-curve smp-g{group}", [(x(point.x), y(point.y)) for point in of]))
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
    legend, end = _legend([name for name, _ in curves], width)
    return frame(width, end, description, [*parts, *legend])


def _legend(names: Sequence[str], width: float) -> tuple[list[str], float]:
    """Colors and marks with their meaning below the axes, and where they end."""
    left, top, parts = 0.0, _HEIGHT + 46.0, []
    swatches = [(rect(f"smp-part smp-g{group}", 0, 0, 10, 10), name) for group, name in enumerate(names)]
    for swatch, name in [*swatches, *_MARKS]:
        wide = 36 + text_width(name)
        if left + wide > width:
            left, top = 0.0, top + 18
        text = label("smp-text", 20, 9, name)
        parts.append(f'<g transform="translate({pixels(left)} {pixels(top)})">{swatch}{text}</g>')
        left += wide
    return parts, top + 14


def plotted_plans(advice: Recommendation) -> list[Plan]:
    """Return the plans of the points, in their order: those that fit, best first."""
    return listed_plans(_result(advice))[: len(representatives(_result(advice)).ranked)]


def points_of(advice: Recommendation) -> list[tuple[float, float]]:
    """GiB per GPU and throughput of the plotted plans, in tokens, or samples, per second."""
    result = representatives(_result(advice))
    sequence = 1 if advice.model.reads_tokens else advice.model.sequence_length(advice.job.sequence_length)
    rates = zip(result.ranked, result.scores.tokens_per_second, strict=True)
    return [(round(float(result.needed_gib[row]), 1), float(f"{rate / sequence:.4g}")) for row, rate in rates]


def alternatives_chart(advice: Recommendation, estimate: Estimate) -> Chart:
    """Return all combinations of techniques that fit, best first, with the reason against each."""
    del estimate
    result_of = _result(advice)
    result, plans = representatives(result_of), plotted_plans(advice)
    usable, tokens = advice.cluster.instance.usable_gpu_memory_gib, advice.model.reads_tokens
    scale, unit = (1.0, "tokens/s") if tokens else (
        1 / advice.model.sequence_length(advice.job.sequence_length), "samples/s"
    )  # fmt: skip
    rates = [scale * float(rate) for rate in result.scores.tokens_per_second]
    free = [usable - float(result.needed_gib[row]) for row in result.ranked]
    reasons = _REASONS.of((result_of,), lambda: list(advice.alternatives["why"]))[: len(plans)]
    return Chart(
        title=f"{len(plans):,} combinations of techniques that fit" if len(plans) != 1 else "One plan fits",
        columns=("Plan", f"Throughput ({unit})", "Against the best", "Free (GiB per GPU)", "Why not"),
        rows=tuple(
            (plan_text(plan), number(rate), f"{100 * (rate / rates[0] - 1):+.1f} %", f"{room:.1f}", reason)
            for plan, rate, room, reason in zip(plans, rates, free, reasons, strict=True)
        ),
        notes=("The best plan of each combination that fits with the required probability.",),
    )


def _result(advice: Recommendation) -> SearchResult:
    if advice.result is None:  # made by hand
        raise AdvisorError("Only advice made by advise() has alternatives.")
    return advice.result


class _Last:
    """The value made last, until another key is requested: it takes seconds, and no plan on the screen changes it."""

    def __init__(self) -> None:
        self._turn = Lock()
        self._made: tuple[tuple[object, ...], Any] = ((), None)

    def of(self, key: tuple[object, ...], make: Callable[[], Any]) -> Any:
        """Return the value of a key, whose parts are compared by identity."""
        with self._turn:
            if list(map(id, self._made[0])) != list(map(id, key)):
                self._made = key, make()
            return self._made[1]


_REASONS = _Last()
_SIZES = _Last()


def _compared(advice: Recommendation, instances: Sequence[str]) -> ClusterSizes:
    """Return the clusters of the advice's own instance type, then those of others."""
    by_type: dict[str, ClusterSizes] = _SIZES.of((advice.request, advice.job.calibration, advice.cluster), dict)
    limits = advice.sizes.limits if advice.sizes is not None else Limits()
    own = advice.cluster.instance.name
    names = list(dict.fromkeys((own, *instances)))
    for name in names:
        if name not in by_type:
            place = advice.cluster.instance if name == own else name
            by_type[name] = advice.compare_clusters(place, _COUNTS, **asdict(limits))
    return ClusterSizes(
        model=advice.model,
        sizes=tuple(size for name in names for size in by_type[name].sizes if size.cluster.instance.name == name),
        goal="cheapest",
        limits=limits,
        requested=advice.cluster,
        complete=all(by_type[name].complete for name in names),
    )


_COUNTS = tuple(2**power for power in range(9))
"""Numbers of nodes on a line, besides those of the present cluster: half of the search takes half of the time."""
MOST_TYPES = 6


def clusters_chart(advice: Recommendation, estimate: Estimate, instances: Sequence[str] = ()) -> Chart:
    """Return the advice's instance type with 1 to 256 nodes, and other types as further lines."""
    del estimate
    if len(instances) > MOST_TYPES:
        raise AdvisorError(f"The chart compares at most {MOST_TYPES} further instance types, not {len(instances)}.")
    return sizes_chart(_compared(advice, instances), advice)


def sizes_chart(sizes: ClusterSizes, advice: Recommendation) -> Chart:
    """Return a line per instance type, with the knees and the advice's cluster."""
    knees = {id(size) for size in sizes.knees}
    priced = [
        (row, size, size.estimate)
        for row, size in enumerate(sizes.sizes)
        if size.estimate is not None and size.usd is not None
    ]
    lines = [
        (name, [_point(group, *triple, sizes, advice, knees) for triple in members])
        for group, (name, members) in enumerate(groupby(priced, key=lambda triple: triple[1].cluster.instance.name))
    ]
    missing = [size for size in sizes.sizes if size.estimate is None]
    library = advice.request.library
    shown = {size.cluster.instance.name for size in sizes.sizes}
    notes = list(sizes.lines())
    if missing:
        notes.append(
            f"No plan fits on {', '.join(size.name for size in missing[:6])}{' ...' if len(missing) > 6 else ''}."
        )
    return Chart(
        title="Cluster size",
        draw=_drawn(lines, sizes.limits, is_run=advice.job.tokens is not None) if lines else None,
        columns=("Cluster", "Library", "Time (95 %)", "Cost (95 %)", "Memory per GPU", ""),
        rows=tuple(sizes.cells(size) for size in sizes.sizes),
        notes=tuple(notes),
        choices=tuple(machine.name for machine in suitable(library) if machine.name not in shown),
    )


def _drawn(lines: list[tuple[str, list[Point]]], limits: Limits, *, is_run: bool) -> Callable[[float], str]:
    points = [point for _, line in lines for point in line]
    deadline, budget = (limits.max_days, limits.max_usd) if is_run else (None, None)
    # The axes reach to the limits and to both ends of the intervals, which only the present cluster has.
    times = [point.x for point in points] + ([deadline] if deadline else [])
    costs = [point.y for point in points] + ([budget] if budget else [])
    for of_time, of_cost in (point.ranges for point in points if point.ranges):
        times += of_time
        costs += of_cost
    across = Axis(
        "days of the run" if is_run else "hours per billion tokens",
        0.9 * min(times),
        1.1 * max(times),
        limit=("deadline", deadline) if deadline else None,
    )
    up = Axis(
        "USD of the run" if is_run else "USD per million tokens",
        0.92 * min(costs),
        1.08 * max(costs),
        limit=("budget", budget) if budget else None,
    )
    return partial(plane, across, up, points, lines, f"{len(points)} clusters by time and cost")


def _point(
    group: int,
    row: int,
    size: ClusterSize,
    estimate: Estimate,
    sizes: ClusterSizes,
    advice: Recommendation,
    knees: set[int],
) -> Point:
    name, library, time, cost, memory, notes = sizes.cells(size)
    days, days_ends, usd, usd_ends = estimate.days, estimate.days_range, estimate.usd_total, estimate.usd_total_range
    if days is None or days_ends is None:
        low, high = estimate.tokens_per_second_range
        days, days_ends = _hours(estimate.tokens_per_second), (_hours(high), _hours(low))
        usd, usd_ends = estimate.usd_per_million_tokens, estimate.usd_per_million_tokens_range
    mark = "now" if size.cluster == advice.cluster else "knee" if id(size) in knees else ""
    return Point(
        days,
        usd or 0.0,
        f"smp-point smp-g{group}{mark and f' smp-is-{mark}'}",
        ", ".join(filter(None, (f"{name}: {time}", cost, memory, library, notes))),
        text=f"{size.cluster.nodes} (knee)" if mark == "knee" else str(size.cluster.nodes),
        radius={"now": 7, "knee": 5.5, "": 4.5}[mark],
        row=row,
        ranges=(days_ends, usd_ends) if mark == "now" and usd_ends else None,
    )


def _hours(tokens_per_second: float) -> float:
    """Hours of a billion tokens."""
    return 1e9 / 3600 / tokens_per_second
