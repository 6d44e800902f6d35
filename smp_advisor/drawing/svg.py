"""Elements of SVG as text. ``js/src/charts/svg.ts`` writes the same text for the same values."""

from __future__ import annotations

import math

__all__ = ["dot", "escape", "frame", "label", "line", "number", "path", "rect"]


def number(value: float) -> str:
    """A coordinate in pixels, to a tenth."""
    tenths = math.floor(value * 10 + 0.5)
    pixels, tenth = divmod(abs(tenths), 10)
    sign = "-" if tenths < 0 else ""
    return f"{sign}{pixels}.{tenth}" if tenth else f"{sign}{pixels}"


def escape(text: str) -> str:
    """Text as content or attribute of an element."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def _element(tag: str, attributes: str, title: str) -> str:
    return f"<{tag} {attributes}><title>{escape(title)}</title></{tag}>" if title else f"<{tag} {attributes}/>"


def rect(style: str, x: float, y: float, width: float, height: float, title: str = "") -> str:
    """A rectangle. One with a title is a mark: pointer and keyboard show its figures."""
    size = f'width="{number(max(width, 0))}" height="{number(max(height, 0))}"'
    return _element("rect", f'class="{style}" x="{number(x)}" y="{number(y)}" {size}', title)


def line(style: str, x1: float, y1: float, x2: float, y2: float, title: str = "") -> str:
    """A straight line."""
    ends = f'x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}"'
    return _element("line", f'class="{style}" {ends}', title)


def dot(style: str, x: float, y: float, radius: float, title: str = "") -> str:
    """A circle."""
    return _element("circle", f'class="{style}" cx="{number(x)}" cy="{number(y)}" r="{number(radius)}"', title)


def path(style: str, points: list[tuple[float, float] | None]) -> str:
    """A line through points. None interrupts it."""
    parts = []
    pen = "M"
    for point in points:
        if point is None:
            pen = "M"
        else:
            parts.append(f"{pen}{number(point[0])} {number(point[1])}")
            pen = "L"
    return f'<path class="{style}" d="{"".join(parts)}"/>' if parts else ""


def label(style: str, x: float, y: float, text: str, anchor: str = "start") -> str:
    """A text with its baseline at `y`. `anchor`: start, middle or end."""
    side = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text class="{style}" x="{number(x)}" y="{number(y)}"{side}>{escape(text)}</text>'


def frame(width: float, height: float, description: str, parts: list[str]) -> str:
    """The drawing. `description` states its contents for screen readers."""
    size = f'viewBox="0 0 {number(width)} {number(height)}" width="{number(width)}" height="{number(height)}"'
    return f'<svg class="smp-chart" {size} role="img" aria-label="{escape(description)}">{"".join(parts)}</svg>'
