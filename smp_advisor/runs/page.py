"""A watched run as text and HTML: status, figures, alarms, and its step times over the predicted band."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from smp_advisor.charts.marks import label, linear, log_ticks, logarithmic, short
from smp_advisor.charts.marks import number as pixels
from smp_advisor.wording import between, table_html, table_lines

if TYPE_CHECKING:
    from smp_advisor.runs.watching import Run

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 560.0, 150.0, 44.0, 20.0
_MOST_POINTS = 500
_ORANGE = "#d55e00"
"""Vermilion of the Okabe-Ito palette."""


@dataclass(frozen=True)
class Page:
    """Both forms of a run."""

    text: str
    html: str


def page_of(run: Run) -> Page:
    """The forms of a run as it was read last."""
    figures = [("", "Measured", "Predicted"), *((row.label, row.measured, row.predicted) for row in run.figures())]
    notes = [*run.notes]
    if run.transitions:
        notes.insert(0, f"Phases: {', '.join(run.transitions)}.")
    if run.problem:
        notes.insert(0, f"Not read: {run.problem}")
    lines = [run.headline, *(f"  ! {alarm}" for alarm in run.alarms)]
    lines += [f"  {line}" for line in table_lines(figures)] if len(figures) > 1 else []
    lines += [f"  {note}" for note in notes]
    alarms = "".join(
        f'<p role="alert" style="margin:4px 0;border-left:3px solid {_ORANGE};padding-left:8px">{escape(alarm)}</p>'
        for alarm in run.alarms
    )
    small = "".join(f'<div style="font-size:0.9em">{escape(note)}</div>' for note in notes)
    html = (
        f'<div class="smp-run"><p role="status" style="font-weight:600;margin:0 0 4px">{escape(run.headline)}</p>'
        f"{alarms}"
        f"{_drawing(run)}{table_html(figures) if len(figures) > 1 else ''}"
        f"{small}</div>"
    )
    return Page(text="\n".join(lines), html=html)


def _drawing(run: Run) -> str:
    """Step times in the order of the log, over the band of the predicted interval."""
    values = [value if value > 0 else math.nan for value in run.seconds]
    every = max(1, math.ceil(len(values) / _MOST_POINTS))
    shown = [value for value in values[::every] if value > 0]
    if len(shown) < 2:
        return ""
    band = None if run.estimate is None else run.estimate.step_seconds_range
    low, high = min(*shown, *(band or ())) / 1.1, max(*shown, *(band or ())) * 1.1
    x = linear(0, len(shown) - 1, _LEFT, _WIDTH - 4)
    y = logarithmic(low, high, _HEIGHT - _BOTTOM, 4)
    parts = []
    if band is not None:
        top, bottom = y(band[1]), y(band[0])
        parts.append(
            f'<rect x="{pixels(_LEFT)}" y="{pixels(top)}" width="{pixels(_WIDTH - 4 - _LEFT)}"'
            f' height="{pixels(bottom - top)}" fill="#0072b2" fill-opacity="0.18"/>'
        )
    points = " ".join(f"{pixels(x(place))},{pixels(y(value))}" for place, value in enumerate(shown))
    parts.append(f'<polyline points="{points}" fill="none" stroke="{_ORANGE}" stroke-width="1.5"/>')
    parts += [label("", _LEFT - 6, y(tick) + 4, short(tick), "end") for tick in log_ticks(low, high, 4)]
    parts.append(
        label("", _LEFT, _HEIGHT - 4, f"seconds per step, {len(values):,} values; band: predicted 95 % interval")
    )
    about = f"Seconds per step: {between((min(shown), max(shown)))}" + (f"; predicted {between(band)}" if band else "")
    return (
        f'<svg viewBox="0 0 {pixels(_WIDTH)} {pixels(_HEIGHT)}" width="{pixels(_WIDTH)}" role="img"'
        f' aria-label="{escape(about, quote=True)}" style="max-width:100%;font-size:11px;fill:currentColor">'
        f"<title>{escape(about)}</title>{''.join(parts)}</svg>"
    )
