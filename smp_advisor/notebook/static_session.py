"""Difference from the recommended plan, kept plans and history as HTML without scripts, for a saved notebook."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from smp_advisor.notebook.panels.compare import plan_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.live import LiveAdvice
    from smp_advisor.live.history import Entry

__all__ = ["session_html"]

_CELL = "padding:2px 14px 2px 0;text-align:left"
_SHOWN = 20
"""Entries of the history, the latest."""


def session_html(advice: LiveAdvice) -> str:
    """HTML of what was done with an advice; empty before anything was."""
    parts = []
    if not advice.is_recommended:
        parts.append(_folded("Against the recommended plan", advice.compare()._repr_html_(), is_open=True))
    if advice.snapshots:
        parts.append(_folded("Kept plans", _table([(name, entry) for name, entry in advice.snapshot_entries.items()])))
    if len(advice.history) > 1:
        history = [(entry.summary, entry) for entry in advice.history[-_SHOWN:]]
        parts.append(_folded("History", _table(history)))
    return "".join(parts)


def _table(lines: Sequence[tuple[str, Entry]]) -> str:
    rows = "".join(
        f'<tr style="background:none"><th scope="row" style="{_CELL};font-weight:400">{escape(text)}</th>'
        + "".join(f'<td style="{_CELL}">{escape(figure)}</td>' for figure in plan_line(entry))
        + "</tr>"
        for text, entry in lines
    )
    return f'<table style="border:0;border-collapse:collapse;margin:0">{rows}</table>'


def _folded(title: str, html: str, *, is_open: bool = False) -> str:
    style = "margin:14px 0 4px;font-size:13px;font-weight:600;cursor:pointer"
    return f'<details{" open" if is_open else ""}><summary style="{style}">{title}</summary>{html}</details>'
