"""Scores of rows: error, share inside the stated interval, width of the interval, interval score; and first scores."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .judge import judge
from .timed import TIME_FIGURES, publication

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from .judge import Judged, Scored
    from .table import Table

__all__ = ["FIGURES", "Score", "by_source", "first_scores", "rows_of", "score", "sources_once"]

FIGURES = {
    "step time": TIME_FIGURES,
    "memory, allocated": ("memory_allocated",),
    "memory, reserved and total": ("memory_total",),
}
"""Figures of a page, and the groups of scored rows that each consists of."""
_OUTSIDE = 40.0
"""Penalty of a value outside of a 95 % interval per unit of distance (Gneiting and Raftery 2007, section 6.2)."""
_FIRST_SCORED = "2026-11-28"
"""Rows that were added later are scored before anybody looks at them."""
_COLUMNS = ("table", "added", "figure", "rows", "median", "p90", "bias", "inside", "width", "package")


@dataclass(frozen=True)
class Score:
    """Scores of some rows. Errors are natural logarithms of predicted over measured."""

    rows: int
    median: float
    """Of the absolute error, as `p90`."""
    p90: float
    bias: float
    inside: float
    """Share of the measured values inside the stated 95 % interval."""
    width: float
    """Median of the logarithm of its upper over its lower end."""
    points: float
    """Mean interval score: the width, plus 40 times the distance of a value outside."""


def score(rows: Sequence[Scored]) -> Score | None:
    """Scores of some rows; None without rows."""
    if not rows:
        return None
    errors = np.array([row.error for row in rows])
    low, high = (np.log([max(row.interval[end], 1e-9) for row in rows if row.interval]) for end in (0, 1))
    measured = np.log([row.measured for row in rows if row.interval])
    outside = np.maximum(low - measured, 0) + np.maximum(measured - high, 0)
    return Score(
        rows=len(rows),
        median=float(np.median(np.abs(errors))),
        p90=float(np.quantile(np.abs(errors), 0.9)),
        bias=float(np.median(errors)),
        inside=float((outside == 0).mean()),
        width=float(np.median(high - low)),
        points=float((high - low + _OUTSIDE * outside).mean()),
    )


def rows_of(judged: Judged, figure: str) -> list[Scored]:
    """Scored rows of one of the `FIGURES`."""
    return [row for name in FIGURES[figure] for row in judged.scored.get(name, ())]


def by_source(rows: Iterable[Scored]) -> dict[str, list[Scored]]:
    """Rows by publication, in the order of the dates at which they were added."""
    groups: dict[tuple[str, str], list[Scored]] = {}
    for row in rows:
        groups.setdefault((row.row.text("added"), publication(row.row)), []).append(row)
    return {name: groups[added, name] for added, name in sorted(groups)}


def sources_once(rows: Iterable[Scored]) -> tuple[float, float]:
    """Median over publications of their median error, and mean of their shares inside: one vote each."""
    every = [found for of in by_source(rows).values() if (found := score(of)) is not None]
    if not every:
        return math.nan, math.nan
    return float(np.median([found.median for found in every])), float(np.mean([found.inside for found in every]))


def first_scores(tables: Iterable[Table], path: Path) -> list[dict[str, str]]:
    """First scores of the tables that are newer than the constants. A table without one gets it now, and keeps it.

    `path` is the file of the scores; nothing is written for tables outside of its folder.
    """
    with path.open(encoding="utf-8", newline="") as file:
        scores = list(csv.DictReader(file))
    known, new = {row["table"] for row in scores}, list[dict[str, str]]()
    for table in tables:
        added = max((row.text("added") for row in table.rows), default="")
        inside = table.path.resolve().is_relative_to(path.parent.resolve())
        name = table.path.resolve().relative_to(path.parent.resolve()).as_posix() if inside else ""
        if not inside or added <= _FIRST_SCORED or name in known:
            continue
        judged = judge([table])
        for figure in FIGURES:
            found = score(rows_of(judged, figure))
            if found is not None:
                values = {key: f"{getattr(found, key):.3f}" for key in ("median", "p90", "bias", "inside", "width")}
                entry = {"table": name, "added": added, "figure": figure, "rows": str(found.rows), "package": added}
                new.append({column: (entry | values)[column] for column in _COLUMNS})
    if new:
        with path.open("a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, _COLUMNS, lineterminator="\n").writerows(new)
    return [*scores, *new]
