"""Bars as plain HTML for pages without the front end: saved notebooks, printed pages, the fallback view.

A part is the border of an empty element. Untrusted notebooks lose SVG and printed pages lose backgrounds; borders
remain in both. Elements do not overlap, because untrusted notebooks lose positions too.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from smp_advisor.wording import seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.notebook.view_state import Costs, Recommendation

__all__ = ["COLORS", "legend", "memory_chart", "time_chart"]

COLORS = (
    "#0072b2", "#56b4e9", "#009e73", "#f0e442", "#e69f00", "#d55e00", "#cc79a7",
    "#666666", "#8c8c8c", "#b0b0b0", "#d4d4d4",
)  # fmt: skip
"""Okabe and Ito's, distinguishable with common color vision deficiencies; gray for parts that no setting changes."""

_BAR_PX = 22
_MARK_PX = 7

_A_SECOND = 0.9995  # as many digits as are shown
_LEAST_SHARE = 0.0005
"""Share of the step time below which texts omit a part."""


def memory_chart(shown: Recommendation, costs: Costs) -> str:
    """One bar per group of stages, next to the usable memory."""
    usable = shown["usable_gib"]
    high = costs["interval"][2]
    full = 1.04 * max(usable, shown["nominal_gib"], high, *(stage["total_gib"] for stage in costs["stages"]))
    rows = []
    for stage in costs["stages"]:
        total = stage["total_gib"]
        label = f"{stage['label']}: {total:.1f} of {usable:.1f} GiB usable; " + _listed(
            shown["categories"], stage["gib"], "GiB"
        )
        bar = _bar(label, shown["categories"], stage["gib"], "GiB", full)
        whisker = _whisker(costs["interval"], full) if stage["peak"] else ""
        marks = whisker + _marks(usable, shown["nominal_gib"], full)
        rows.append(_row(stage["label"], bar + marks, f"{total:.1f} GiB"))
    return "".join(rows)


def time_chart(shown: Recommendation, costs: Costs) -> str:
    """One bar with the parts of a step."""
    total = costs["step_seconds"]
    label = f"Step time {seconds(total)} ({costs['step_range']}): " + _listed(shown["seconds"], costs["seconds"], "s")
    return _row("Each step", _bar(label, shown["seconds"], costs["seconds"], "s", total), seconds(total))


def legend(names: Sequence[str], values: Sequence[float], unit: str) -> str:
    """Color, name and value of each part, the largest first. Empty parts are omitted."""
    total = sum(values)
    parts = sorted((value, index) for index, value in enumerate(values) if _worth(value, unit, total))
    items = [
        f'<span style="white-space:nowrap;margin-right:14px"><span style="display:inline-block;width:10px;height:10px;'
        f'margin-right:5px;background:{COLORS[index]};outline:1px solid #0003"></span>'
        f"{escape(names[index])} {_amount(value, unit, total)}</span>"
        for value, index in reversed(parts)
    ]
    return f'<div style="line-height:1.7">{" ".join(items)}</div>'


def _bar(label: str, names: Sequence[str], values: Sequence[float], unit: str, full: float) -> str:
    total = sum(values)
    parts = "".join(
        f'<div title="{escape(name)}: {_amount(value, unit, total)}" style="width:{100 * value / full:.2f}%;'
        f'border-top:{_BAR_PX}px solid {color}"></div>'
        for name, value, color in zip(names, values, COLORS, strict=False)
        if value > 0
    )
    return f'<div role="img" aria-label="{escape(label)}" style="display:flex">{parts}</div>'


def _whisker(interval: tuple[float, float, float], full: float) -> str:
    """A bracket from end to end of the 95 % interval of the memory needed."""
    low, needed, high = (max(end, 0.0) for end in interval)
    title = f"{needed:.1f} GiB needed, 95 %: {low:.1f} to {high:.1f} GiB"
    size = f"box-sizing:border-box;width:{100 * (high - low) / full:.2f}%;height:5px"
    lines = "border-left:1px solid;border-right:1px solid;border-bottom:1px solid"
    return (
        f'<div style="display:flex"><div style="width:{100 * low / full:.2f}%"></div>'
        f'<div title="{title}" style="{size};{lines}"></div></div>'
    )


def _marks(usable: float, nominal: float, full: float) -> str:
    """A line below the bar at the usable memory, and a thinner line at the nominal memory."""
    ends = [(usable, "2px solid")]
    if nominal > usable:
        ends.append((nominal, "1px solid"))
    start, marks = 0.0, []
    for end, line in ends:
        size = f"box-sizing:border-box;width:{100 * (end - start) / full:.2f}%;height:{_MARK_PX}px"
        marks.append(f'<div style="{size};border-right:{line}"></div>')
        start = end
    return f'<div style="display:flex;margin-bottom:4px">{"".join(marks)}</div>'


def _row(label: str, bar: str, total: str) -> str:
    return (
        '<div style="display:flex;align-items:center;gap:10px">'
        f'<div style="flex:0 0 108px">{escape(label)}</div><div style="flex:1 1 auto;min-width:120px">{bar}</div>'
        f'<div style="flex:0 0 68px;text-align:right;font-variant-numeric:tabular-nums">{total}</div></div>'
    )


def _listed(names: Sequence[str], values: Sequence[float], unit: str) -> str:
    total = sum(values)
    return ", ".join(
        f"{name} {_amount(value, unit, total)}"
        for name, value in zip(names, values, strict=True)
        if _worth(value, unit, total)
    )


def _worth(value: float, unit: str, total: float) -> bool:
    """Whether a part is large enough to list: a step takes milliseconds or minutes, memory is always some GiB."""
    return value >= (_LEAST_SHARE * total if unit == "s" else 0.005) and value > 0


def _amount(value: float, unit: str, total: float) -> str:
    """Text of a part of `total`. Parts of one time are all in seconds or all in milliseconds."""
    if unit == "s":
        return f"{value:.{3 if value < 0.1 else 2}f} s" if total >= _A_SECOND > value else seconds(value)
    return f"{value:.2f} {unit}" if value < 0.1 else f"{value:.1f} {unit}"
