"""Intervals and spreads of the step time, from runs whose entire source was left out of the fit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["ANY", "Spread", "coverage", "spread_table"]

ANY = "any"
_LEVEL = 0.95
_LEAST_ROWS = 8
_LEAST_SOURCES = 2
"""A kind of plan with fewer has the figures of all kinds."""
_OTHERS = 12.0
"""Rows by which runs of other kinds count in the figures of one kind."""
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


def spread_table(errors: Floats, kinds: NDArray[np.str_], sources: NDArray[np.str_]) -> dict[str, Spread]:
    """Figures of every kind of plan.

    Parameters
    ----------
    errors
        Logarithm of predicted over measured, with the row's source left out of the fit.
    kinds, sources
        Kind of plan and source of every row.
    """
    return {
        name: _spread(-errors, kinds, sources, name)
        for name in (ANY, *map(str, np.unique(kinds)))
        if name == ANY or _has_enough(kinds == name, sources)
    }


def _has_enough(chosen: NDArray[np.bool_], sources: NDArray[np.str_]) -> bool:
    return bool(chosen.sum() >= _LEAST_ROWS and len(np.unique(sources[chosen])) >= _LEAST_SOURCES)


def _spread(slower: Floats, kinds: NDArray[np.str_], sources: NDArray[np.str_], kind: str) -> Spread:
    chosen = np.ones(len(slower), dtype=bool) if kind == ANY else kinds == kind
    weights = _weights(chosen, sources)
    between, within = _variances(slower, weights, kinds, sources)
    return Spread(
        low=min(_quantile(slower, weights, (1 - _LEVEL) / 2), -2 * _LEAST_SPREAD),
        high=max(_quantile(slower, weights, (1 + _LEVEL) / 2), 2 * _LEAST_SPREAD),
        source_spread=max(math.sqrt(between), _LEAST_SPREAD),
        run_spread=max(math.sqrt(within), _LEAST_SPREAD),
        rows=int(chosen.sum()),
        sources=len(np.unique(sources[chosen])),
        median_error=float(np.median(np.abs(slower[chosen]))),
    )


def _weights(chosen: NDArray[np.bool_], sources: NDArray[np.str_]) -> Floats:
    """Weight of every row: n rows of a source count as their square root, rows of other kinds as a few in all."""
    weights = np.zeros(len(chosen))
    for part, total in ((chosen, None), (~chosen, _OTHERS)):
        for source in np.unique(sources[part]):
            rows = part & (sources == source)
            weights[rows] = 1 / math.sqrt(rows.sum())
        if total is not None and part.any():
            weights[part] *= min(total / weights[part].sum(), 1.0)
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


def _variances(
    slower: Floats, weights: Floats, kinds: NDArray[np.str_], sources: NDArray[np.str_]
) -> tuple[float, float]:
    """Variances between sources and within them (runs of one kind of plan of one source)."""
    cells = np.char.add(np.char.add(sources, "|"), kinds)
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


def coverage(errors: Floats, kinds: NDArray[np.str_], sources: NDArray[np.str_]) -> NDArray[np.bool_]:
    """Whether every row lies within the interval that the other sources give, shape (rows,)."""
    inside = np.zeros(len(errors), dtype=bool)
    for source in np.unique(sources):
        others = sources != source
        if not others.any():
            continue
        table = spread_table(errors[others], kinds[others], sources[others])
        for row in np.flatnonzero(~others):
            entry = table.get(str(kinds[row]), table[ANY])
            inside[row] = entry.low <= -errors[row] <= entry.high
    return inside
