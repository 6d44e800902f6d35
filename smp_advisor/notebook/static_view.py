"""The picture of an advice in HTML, for saved notebooks and the fall-back view."""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING

from smp_advisor.advice.written import html_report
from smp_advisor.notebook.figures import FITS
from smp_advisor.notebook.panels import plan_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.advice.live import LiveAdvice
    from smp_advisor.notebook.view_state import Data

__all__ = ["session_html", "static_html", "title_html", "verdict_html"]


_SHOWN = 3
"""Entries of the history, the latest, and kept plans: the saved output stays small."""


def session_html(advice: LiveAdvice) -> str:
    """HTML of what was done with an advice; empty before anything was."""
    parts = []
    if not advice.is_recommended:
        summary = escape(advice.compare().summary)
        parts.append(f'<p style="margin:8px 0"><strong>Against the recommended plan:</strong> {summary}</p>')
    if advice.snapshots:
        entries = list(advice.snapshot_entries.items())[-_SHOWN:]
        parts.append(
            _folded_titles("Kept plans", [f"{name}: {', '.join(plan_line(entry))}" for name, entry in entries])
        )
    if len(advice.history) > 1:
        parts.append(_folded_titles("History", [entry.summary for entry in advice.history[-_SHOWN:]]))
    return "".join(parts)


def _folded_titles(title: str, texts: Sequence[str]) -> str:
    style = "margin:14px 0 4px;font-size:13px;font-weight:600;cursor:pointer"
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f'<details><summary style="{style}">{title}</summary><ul>{items}</ul></details>'


_FRAME = (
    "max-width:1040px;box-sizing:border-box;padding:14px 18px;border-radius:6px;"
    "border:1px solid var(--jp-border-color1,#bdbdbd);"
    "color:var(--jp-ui-font-color1,inherit);font:13px/1.5 var(--jp-ui-font-family,system-ui,sans-serif)"
)
_MUTED = "color:var(--jp-ui-font-color2,inherit)"
_LARGE = "font-size:22px;font-weight:700;line-height:1.2"
_STATES = {"fits": "#0a7d4f", "risk": "#b25e00", "over": "#b3261e"}
"""Colors of the verdict's border. Its words have the color of text, which both themes have."""


def static_html(advice: LiveAdvice, shown: Data, now: Data) -> str:
    """HTML of the plan on screen: verdict, what was done, bars, ladder and reasons, then folded details."""
    page = title_html(shown) + verdict_html(shown, now) + session_html(advice) + html_report(advice)
    return f'<div class="smp-static" style="{_FRAME}">{_without_formulas(page)}</div>'


def _without_formulas(html: str) -> str:
    """HTML whose dollar signs delimit no formula: pages of notebooks typeset text between two of them."""
    return re.sub(r">[^<]*", lambda text: text[0].replace("$", "<span>$</span>"), html)


def title_html(shown: Data) -> str:
    """Model and cluster."""
    return f'<div style="font-size:15px;font-weight:600;margin-bottom:8px">{escape(shown["title"])}</div>'


def verdict_html(shown: Data, now: Data) -> str:
    """Whether the plan fits, its speed, time and money, and what decides."""
    costs = now["costs"]
    sign, words = FITS[costs["fit"]]
    void = costs["fit"] == "over"  # a plan that cannot run has no speed and no price
    style = "text-decoration:line-through" if void else ""
    figures = "".join(
        f'<div><div style="{style}">{escape(about)} <span style="{_LARGE}">{escape(value)}</span> {escape(unit)}</div>'
        f'<div style="{_MUTED}">{"if it fitted" if void else escape(note or ends)}</div></div>'
        for about, value, unit, note, ends in costs["headline"]
    )
    recommended = now["configuration"] == shown["recommended"]["configuration"]
    lead, reason = shown["decisive"] if recommended else ("Your plan.", "Its settings are below.")
    return (
        f'<div style="border-left:4px solid {_STATES[costs["fit"]]};padding:4px 14px">'
        f'<div style="display:flex;flex-wrap:wrap;gap:8px 32px"><div><div style="{_LARGE}">{sign} {words}</div>'
        f"<div><strong>{escape(costs['memory'])}</strong></div>"
        f'<div style="{_MUTED}">{escape(costs["likely"])}</div></div>{figures}</div>'
        f'<div style="margin-top:6px"><strong>{escape(lead)}</strong> {escape(reason)}</div></div>'
    )
