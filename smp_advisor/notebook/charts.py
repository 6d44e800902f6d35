"""Bars as SVG, for where the front end cannot draw them: saved notebooks, printed pages, the fall-back view.

No text stands inside of the SVG: a page that does not trust the notebook takes the shapes out and leaves the text.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.notebook.view_state import Costs, Recommendation

__all__ = ["COLOURS", "legend", "memory_chart", "time_chart"]

COLOURS = (
    "#0072b2", "#56b4e9", "#009e73", "#f0e442", "#e69f00", "#d55e00", "#cc79a7",
    "#666666", "#8c8c8c", "#b0b0b0", "#d4d4d4",
)  # fmt: skip
"""Okabe and Ito's, told apart with any common colour-vision deficiency; greys for what no setting changes."""

_INK = "var(--jp-ui-font-color1, currentColor)"
_BAR_PX = 22


def memory_chart(shown: Recommendation, costs: Costs) -> str:
    """One bar a group of stages, against the usable memory."""
    usable = shown["usable_gib"]
    full = 1.04 * max(usable, shown["nominal_gib"], *(sum(stage["gib"]) for stage in costs["stages"]))
    rows = []
    for stage in costs["stages"]:
        total = sum(stage["gib"])
        label = f"{stage['label']}: {total:.1f} of {usable:.1f} GiB usable; " + _listed(
            shown["categories"], stage["gib"], "GiB"
        )
        bar = _bar(label, stage["gib"], full, marks=(usable, shown["nominal_gib"]))
        rows.append(_row(stage["label"], bar, f"{total:.1f} GiB"))
    return "".join(rows)


def time_chart(shown: Recommendation, costs: Costs) -> str:
    """One bar of the parts of a step."""
    total = sum(costs["seconds"])
    label = f"Step time {total:.2f} s: " + _listed(shown["seconds"], costs["seconds"], "s")
    return _row("Each step", _bar(label, costs["seconds"], total), f"{total:.2f} s")


def legend(names: Sequence[str], values: Sequence[float], unit: str) -> str:
    """Colour, name and value of each part, the largest first; parts of nothing are left out."""
    parts = sorted((value, index) for index, value in enumerate(values) if _worth(value))
    items = [
        f'<span style="white-space:nowrap;margin-right:14px"><span style="display:inline-block;width:10px;height:10px;'
        f'margin-right:5px;background:{COLOURS[index]};outline:1px solid #0003"></span>'
        f"{escape(names[index])} {_amount(value, unit)}</span>"
        for value, index in reversed(parts)
    ]
    return f'<div style="line-height:1.7">{" ".join(items)}</div>'


def _bar(label: str, values: Sequence[float], full: float, marks: tuple[float, float] | None = None) -> str:
    x = 0.0
    edge = f'stroke="{_INK}" stroke-opacity="0.35" stroke-width="0.5"'
    parts = []
    for index, value in enumerate(values):
        width = 100 * value / full
        if value > 0:
            place = f'x="{x:.2f}%" y="4" width="{width:.2f}%" height="{_BAR_PX}"'
            parts.append(f'<rect {place} fill="{COLOURS[index]}" {edge}/>')
        x += width
    if marks is not None:
        usable, nominal = marks
        parts.append(_line(usable / full, 'stroke-width="2"'))
        parts.append(_line(nominal / full, 'stroke-dasharray="2 3"'))
    size = 'width="100%" height="30" style="display:block"'
    return f'<svg role="img" aria-label="{escape(label)}" {size}>{"".join(parts)}</svg>'


def _line(share: float, style: str) -> str:
    x = f"{100 * share:.2f}%"
    return f'<line x1="{x}" x2="{x}" y1="0" y2="30" stroke="{_INK}" {style}/>'


def _row(label: str, bar: str, total: str) -> str:
    return (
        '<div style="display:flex;align-items:center;gap:10px">'
        f'<div style="flex:0 0 108px">{escape(label)}</div><div style="flex:1 1 auto;min-width:120px">{bar}</div>'
        f'<div style="flex:0 0 68px;text-align:right;font-variant-numeric:tabular-nums">{total}</div></div>'
    )


def _listed(names: Sequence[str], values: Sequence[float], unit: str) -> str:
    return ", ".join(
        f"{name} {_amount(value, unit)}" for name, value in zip(names, values, strict=True) if _worth(value)
    )


def _worth(value: float) -> bool:
    return value >= 0.005


def _amount(value: float, unit: str) -> str:
    return f"{value:.2f} {unit}" if unit == "s" or value < 0.1 else f"{value:.1f} {unit}"
