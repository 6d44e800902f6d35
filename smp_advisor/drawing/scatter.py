"""Plans by free memory and throughput. Twin: ``scatter.ts``."""

from __future__ import annotations

from typing import TypedDict

from smp_advisor.drawing.scale import fixed, linear, short, ticks
from smp_advisor.drawing.svg import dot, frame, label, line

__all__ = ["Scatter", "scatter"]


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


_LEFT = 46
_HEIGHT = 240


def scatter(data: Scatter, width: float) -> str:
    """Points over two axes as SVG, `width` pixels wide."""
    now = data["now"]
    free, rates = [*data["free"], *([now[0]] if now else [])], [*data["rates"], *([now[1]] if now else [])]
    low, high = min(*free, 0), max(free) * 1.04
    slow, fast = min(rates), max(rates)
    x = linear(low, high, _LEFT + 8, width - 12)
    y = linear(0 if slow < 0.5 * fast else 0.96 * slow, 1.02 * fast, _HEIGHT, 22)
    parts = [label("smp-tick", 0, 11, data["unit"])]
    for value in ticks(0 if slow < 0.5 * fast else 0.96 * slow, 1.02 * fast, 5):
        parts.append(line("smp-grid", _LEFT, y(value), width, y(value)))
        parts.append(label("smp-tick", _LEFT - 6, y(value) + 4, short(value), "end"))
    for value in ticks(low, high, width / 90):
        parts.append(line("smp-grid", x(value), 22, x(value), _HEIGHT))
        parts.append(label("smp-tick", x(value), _HEIGHT + 15, short(value), "middle"))
    parts.append(label("smp-text", _LEFT + (width - _LEFT) / 2, _HEIGHT + 32, "GiB free per GPU", "middle"))
    for index in reversed(range(len(data["titles"]))):
        style = f"smp-point smp-g{data['groups'][index]}{' smp-best' if index == data['best'] else ''}"
        radius = 6 if index == data["best"] else 4
        parts.append(dot(style, x(data["free"][index]), y(data["rates"][index]), radius, data["titles"][index]))
    if now:
        title = f"this plan: {short(now[1])} {data['unit']}, {fixed(now[0], 1)} GiB free"
        parts.append(dot("smp-here", x(now[0]), y(now[1]), 8, title))
        side, shift = ("end", -12) if x(now[0]) > width - 80 else ("start", 12)
        parts.append(label("smp-text smp-strong", x(now[0]) + shift, y(now[1]) - 6, "this plan", side))
    description = (
        f"{len(data['titles'])} plans by free memory ({short(min(free))} to {short(max(free))} GiB) and throughput"
    )
    return frame(width, _HEIGHT + 38, f"{description} ({short(slow)} to {short(fast)} {data['unit']})", parts)
