"""Throughput and memory at every position of a setting. Twin: ``sweep.ts``."""

from __future__ import annotations

import math
from itertools import groupby
from typing import TYPE_CHECKING, Literal, TypedDict

from smp_advisor.drawing.scale import fixed, linear, short, text_width, ticks
from smp_advisor.drawing.svg import dot, frame, label, line, path, rect

if TYPE_CHECKING:
    from smp_advisor.drawing.scale import Scale

__all__ = ["Fit", "Sweep", "sweep"]

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


_LEFT = 46
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
                parts.append(dot(f"smp-dot {style}{chosen}{best}", *point, radius, _title(data, index)))
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
