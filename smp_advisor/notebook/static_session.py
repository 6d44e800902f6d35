"""Difference from the recommended plan, kept plans and history as HTML without scripts, for a saved notebook."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from smp_advisor.notebook.panels.compare import plan_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.live import LiveAdvice

__all__ = ["session_html"]

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
        parts.append(_folded("Kept plans", [f"{name}: {', '.join(plan_line(entry))}" for name, entry in entries]))
    if len(advice.history) > 1:
        parts.append(_folded("History", [entry.summary for entry in advice.history[-_SHOWN:]]))
    return "".join(parts)


def _folded(title: str, texts: Sequence[str]) -> str:
    style = "margin:14px 0 4px;font-size:13px;font-weight:600;cursor:pointer"
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f'<details><summary style="{style}">{title}</summary><ul>{items}</ul></details>'
