"""Scales of axes, texts of numbers, and marks of SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from smp_advisor.core.words import escape

Scale = Callable[[float], float]
"""From a value to a position in pixels."""

_SUFFIXES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))


def linear(low: float, high: float, start: float, end: float) -> Scale:
    span = high - low if high > low else 1.0
    return lambda value: start + (end - start) * (value - low) / span


def logarithmic(low: float, high: float, start: float, end: float) -> Scale:
    """Equal distances for equal ratios of positive values."""
    span = math.log(high / low) if high > low else 1.0
    return lambda value: start + (end - start) * math.log(value / low) / span


def ticks(low: float, high: float, count: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, about `count` of them."""
    if not high > low:
        return [low]
    raw = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next((factor for factor in (1, 2, 5) if power * factor >= raw), 10)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def log_ticks(low: float, high: float, count: float) -> list[float]:
    """Multiples of the powers of ten between two positive values: at most `count`, of 1, 2 and 5 where they suffice."""
    powers = [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    for factors in ((1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        values = [power * factor for power in powers for factor in factors if low <= power * factor <= high]
        if len(values) <= count:
            break
    return values


def short(value: float) -> str:
    """Three significant digits with a suffix: ``278k``, ``1.25M``, ``0.5``."""
    size = abs(value)
    if size < 1e-12:
        return "0"
    scale, suffix = next(((scale, name) for scale, name in _SUFFIXES if size >= 0.9995 * scale), (1.0, ""))
    size /= scale
    digits = 0 if size >= 99.95 else 1 if size >= 9.995 else 2
    if size < 0.9995:
        digits = 3 if size >= 0.09995 else 4
    text = f"{size:.{digits}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return f"{'-' if value < 0 else ''}{text}{suffix}"


def text_width(text: str) -> float:
    """Approximate width of a label in pixels, at the size of the charts."""
    return 6.2 * len(text)


def number(value: float) -> str:
    """Return a coordinate in pixels, to a tenth."""
    return f"{value:.1f}".removesuffix(".0")


def _element(tag: str, attributes: str, title: str) -> str:
    return f"<{tag} {attributes}><title>{escape(title)}</title></{tag}>" if title else f"<{tag} {attributes}/>"


def rect(style: str, x: float, y: float, width: float, height: float, title: str = "", row: int | None = None) -> str:
    """Return a rectangle. One with a title is a mark: pointer and keyboard show its figures, and views use its row."""
    of = "" if row is None else f' data-row="{row}"'
    size = f'width="{number(max(width, 0))}" height="{number(max(height, 0))}"'
    return _element("rect", f'class="{style}" x="{number(x)}" y="{number(y)}" {size}{of}', title)


def line(style: str, x1: float, y1: float, x2: float, y2: float, title: str = "") -> str:
    ends = f'x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}"'
    return _element("line", f'class="{style}" {ends}', title)


def dot(style: str, x: float, y: float, radius: float, title: str = "", row: int | None = None) -> str:
    """Return a circle. Views load the row of the table that it stands for."""
    of = "" if row is None else f' data-row="{row}"'
    return _element("circle", f'class="{style}" cx="{number(x)}" cy="{number(y)}" r="{number(radius)}"{of}', title)


def path(style: str, points: Iterable[tuple[float, float]]) -> str:
    return f'<path class="{style}" d="M{"L".join(f"{number(x)} {number(y)}" for x, y in points)}"/>'


def label(style: str, x: float, y: float, text: str, anchor: str = "start") -> str:
    """Return a text with its baseline at `y`. `anchor`: start, middle or end."""
    side = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text class="{style}" x="{number(x)}" y="{number(y)}"{side}>{escape(text)}</text>'


def frame(width: float, height: float, description: str, parts: list[str]) -> str:
    """Return the drawing. `description` states its contents for screen readers."""
    size = f'viewBox="0 0 {number(width)} {number(height)}" width="{number(width)}" height="{number(height)}"'
    return f'<svg class="smp-chart" {size} role="img" aria-label="{escape(description)}">{"".join(parts)}</svg>'
