"""Intervals and spreads of the step time, from runs whose entire source was left out of the fit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["ANY", "Runs", "Spread", "coverage", "spread_table"]

ANY = "any"
_LEVEL = 0.95
_LEAST_ROWS = 3
"""A kind of plan with fewer has the figures of all kinds."""
_OTHER_KINDS, _OTHER_GROUPS = 10.0, 4.0
"""Rows by which runs of other kinds of plan, and of other groups of stacks, count in the figures of one kind."""
_LEAST_SPREAD = 0.03


@dataclass(frozen=True)
class Spread:
    """Figures of one kind of code and plan, as logarithms of measured over predicted step time."""

    low: float
    high: float
    source_spread: float
    run_spread: float
    rows: int
    sources: int
    median_error: float


@dataclass(frozen=True)
class Runs:
    """Errors of runs and their classes, arrays of shape (rows,)."""

    errors: Floats
    """Logarithm of predicted over measured, with the row's source left out of the fit."""
    groups: NDArray[np.str_]
    """Group of stacks."""
    kinds: NDArray[np.str_]
    sources: NDArray[np.str_]

    def take(self, rows: NDArray[np.bool_]) -> Runs:
        """Selected rows."""
        return Runs(self.errors[rows], self.groups[rows], self.kinds[rows], self.sources[rows])


def spread_table(runs: Runs) -> dict[str, dict[str, Spread]]:
    """Figures by group of stacks and kind of plan."""
    table: dict[str, dict[str, Spread]] = {}
    for group in map(str, np.unique(runs.groups)):
        of_group = runs.groups == group
        table[group] = {ANY: _spread(runs, of_group, of_group)}
        for kind in map(str, np.unique(runs.kinds[of_group])):
            chosen = of_group & (runs.kinds == kind)
            if chosen.sum() >= _LEAST_ROWS:
                table[group][kind] = _spread(runs, chosen, of_group)
    return table


def _spread(runs: Runs, chosen: NDArray[np.bool_], of_group: NDArray[np.bool_]) -> Spread:
    slower, weights = -runs.errors, _weights(runs, chosen, of_group)
    between, within = _variances(slower, weights, runs)
    return Spread(
        low=min(_quantile(slower, weights, (1 - _LEVEL) / 2), -2 * _LEAST_SPREAD),
        high=max(_quantile(slower, weights, (1 + _LEVEL) / 2), 2 * _LEAST_SPREAD),
        source_spread=max(math.sqrt(between), _LEAST_SPREAD),
        run_spread=max(math.sqrt(within), _LEAST_SPREAD),
        rows=int(chosen.sum()),
        sources=len(np.unique(runs.sources[chosen])),
        median_error=float(np.median(np.abs(slower[chosen]))),
    )


def _weights(runs: Runs, chosen: NDArray[np.bool_], of_group: NDArray[np.bool_]) -> Floats:
    """Weight of every row: n rows of a source count as their square root, rows of other classes as a few in all."""
    weights = np.zeros(len(chosen))
    # Errors of offloaded activations are not those of other plans.
    usual = ~np.char.startswith(runs.kinds, "offloaded")
    chosen = chosen & usual if (chosen & usual).any() else chosen
    others = usual & ~chosen
    for part, most in ((chosen, math.inf), (of_group & others, _OTHER_KINDS), (~of_group & others, _OTHER_GROUPS)):
        for source in np.unique(runs.sources[part]):
            rows = part & (runs.sources == source)
            weights[rows] = 1 / math.sqrt(rows.sum())
        if part.any():
            weights[part] *= min(most / weights[part].sum(), 1.0)
    return weights


def _quantile(values: Floats, weights: Floats, level: float) -> float:
    """Weighted quantile. The next run has the weight of an average one and may be further out than all (conformal)."""
    order = np.argsort(values)
    share = np.cumsum(weights[order]) - weights[order] / 2
    total = weights.sum()
    # Widening for few rows: the outermost of n rows is the quantile of n / (n + 1).
    count = total**2 / (weights**2).sum()
    outward = 0.5 + (level - 0.5) * min((count + 1) / count, 1 / (2 * abs(level - 0.5)) if level != 0.5 else 1.0)
    return float(np.interp(outward * total, share, values[order]))


def _variances(slower: Floats, weights: Floats, runs: Runs) -> tuple[float, float]:
    """Variances between sources and within them (runs of one kind of plan of one source)."""
    cells = np.char.add(np.char.add(runs.sources, "|"), runs.kinds)
    away, away_weights, levels, level_weights, shares = [], [], [], [], []
    for cell in np.unique(cells):
        rows = cells == cell
        count = int(rows.sum())
        middle = float(np.median(slower[rows]))
        if count > 1:
            # The mean of n rows is closer to them than that of the source is.
            away.extend(np.abs(slower[rows] - middle) * math.sqrt(count / (count - 1)))
            away_weights.extend(weights[rows])
        levels.append(abs(middle))
        level_weights.append(float(weights[rows].sum()))
        shares.append(1 / count)
    within = _deviation(away, away_weights) ** 2
    between = _deviation(levels, level_weights) ** 2 - within * float(np.average(shares, weights=level_weights))
    return max(between, 0.0), within


def _deviation(absolute: list[float], weights: list[float]) -> float:
    """Standard deviation of a normal distribution with this 80 % quantile: some runs are far out for other causes."""
    if not absolute:
        return 0.0
    values, shares = np.array(absolute), np.array(weights)
    order = np.argsort(values)
    share = (np.cumsum(shares[order]) - shares[order] / 2) / shares.sum()
    return float(np.interp(0.8, share, values[order])) / 1.2816


def coverage(runs: Runs) -> NDArray[np.bool_]:
    """Whether every row lies within the interval that the other sources give, shape (rows,)."""
    inside = np.zeros(len(runs.errors), dtype=bool)
    for source in np.unique(runs.sources):
        others = runs.sources != source
        if not others.any():
            continue
        table = spread_table(runs.take(others))
        pooled = table.get("users") or next(iter(table.values()))
        for row in np.flatnonzero(~others):
            entries = table.get(str(runs.groups[row]), pooled)
            entry = entries.get(str(runs.kinds[row]), entries[ANY])
            inside[row] = entry.low <= -runs.errors[row] <= entry.high
    return inside
