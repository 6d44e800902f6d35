"""The tab that compares two plans, with the named snapshots and the history."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from smp_advisor.live.live_advice import ON_SCREEN, RECOMMENDED
from smp_advisor.notebook.headline import FITS, fit, headlines, memory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.live import LiveAdvice
    from smp_advisor.live.comparison import Comparison, Row
    from smp_advisor.live.control_state import ControlState
    from smp_advisor.live.history import Entry

__all__ = ["ComparisonData", "compare", "comparison_data", "plan_line"]

_SHOWN = 40
"""Number of entries of the history around the present one in the tab."""


class ComparisonData(TypedDict):
    """A `Comparison` as plain data. Rows are label, first, second and change."""

    names: list[str]
    summary: str
    settings: list[list[str]]
    figures: list[list[str]]


def compare(advice: LiveAdvice, state: ControlState, options: Mapping[str, object]) -> Mapping[str, object]:
    """Two plans next to each other, the snapshots and the history.

    Parameters
    ----------
    options
        ``first`` and ``second``: names of snapshots, ``Recommended`` or ``On screen``. Names that do not exist any more
        are those two again.
    """
    names = [RECOMMENDED, ON_SCREEN, *advice.snapshots]
    first, second = (
        chosen if isinstance(chosen := options.get(end), str) and chosen in names else default
        for end, default in (("first", RECOMMENDED), ("second", ON_SCREEN))
    )
    history, position = advice.history, len(advice.history) - 1 - advice.undone
    start = min(max(position - _SHOWN // 2, 0), max(len(history) - _SHOWN, 0))
    return {
        "plans": names,
        "chosen": [first, second],
        "compared": comparison_data(advice.compare_at(state, first, second)),
        "snapshots": [[name, *plan_line(entry)] for name, entry in advice.snapshot_entries.items()],
        "history": [[entry.summary, *plan_line(entry)] for entry in history[start : start + _SHOWN]],
        "position": position - start,
    }


def comparison_data(comparison: Comparison) -> ComparisonData:
    """A comparison for a view."""
    return {
        "names": list(comparison.names),
        "summary": comparison.summary,
        "settings": [_row(row) for row in comparison.settings],
        "figures": [_row(row) for row in comparison.figures],
    }


def _row(row: Row) -> list[str]:
    return [row.label, row.first, row.second, row.change]


def plan_line(entry: Entry) -> list[str]:
    """Fit, memory, speed, time and money of a plan."""
    estimate, required = entry.state.estimate, entry.recommended.min_fit_probability
    figures = headlines(entry.state.advice.model, estimate)
    return [FITS[fit(estimate, required)][1], memory(estimate), *(f"{value.value} {value.unit}" for value in figures)]
