"""Intervals and spreads of the step time, from runs whose entire source was left out of the fit."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["ANY", "Runs", "Spread", "kind_correlation", "spread_table", "without_parts"]

ANY = "any"
_LEAST_ROWS = 3
"""A kind of plan with fewer has the figures of all kinds."""
_POOLED_ROWS = 8.0
"""Rows by which the scale of all kinds counts in that of one."""
_SHARES = (0.5, 0.85)
"""Limits of the share of the variance that lies between sources: runs of few sources do not determine it."""
_FAR_OUT = 0.3
_OFFLOADED = "offloaded"
"""Kinds of plan whose errors are not those of other kinds."""
_LEAST_SPREAD = 0.03


@dataclass(frozen=True)
class Spread:
    """Spreads of one kind of code and plan, of the logarithm of measured over predicted step time."""

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


def spread_table(runs: Runs, most: float = math.inf) -> dict[str, dict[str, Spread]]:
    """Figures by group of stacks and kind of plan.

    Every kind has a scale of its own, shrunk to that of its group as far as it has few runs, and at most `most`: draws
    are not wider than the interval, whose penalty for a few sources far out is limited.
    """
    return {
        group: {kind: _spread(runs, group, kind, min(scale, most)) for kind, scale in kinds.items()}
        for group, kinds in _scales(runs).items()
    }


def _scales(runs: Runs) -> dict[str, dict[str, float]]:
    """Standard deviation by group and kind."""
    everything = _scale(runs, ~np.char.startswith(runs.kinds, _OFFLOADED), 0.0)
    result: dict[str, dict[str, float]] = {}
    for group in map(str, np.unique(runs.groups)):
        of_group = runs.groups == group
        pooled = _scale(runs, of_group & ~np.char.startswith(runs.kinds, _OFFLOADED), everything)
        result[group] = {ANY: pooled}
        for kind in map(str, np.unique(runs.kinds[of_group])):
            chosen = of_group & (runs.kinds == kind)
            if chosen.sum() >= _LEAST_ROWS:
                result[group][kind] = _scale(runs, chosen, pooled)
    return result


def _scale(runs: Runs, chosen: NDArray[np.bool_], pooled: float) -> float:
    weights = _weights(runs, chosen)
    own = _deviation(list(np.abs(runs.errors[chosen])), list(weights[chosen]))
    count = float(weights.sum())
    shrunk = _POOLED_ROWS if pooled else 0.0
    if count + shrunk == 0:
        return _LEAST_SPREAD
    return max(math.sqrt((count * own**2 + shrunk * pooled**2) / (count + shrunk)), _LEAST_SPREAD)


def _spread(runs: Runs, group: str, kind: str, scale: float) -> Spread:
    chosen = (runs.groups == group) & ((runs.kinds == kind) if kind != ANY else True)
    between, within = _variances(-runs.errors, _weights(runs, chosen), runs)
    # The spreads keep their proportion and have the shrunk scale in all.
    total = between + within
    share = min(max(between / total if total else 0.0, _SHARES[0]), _SHARES[1])
    return Spread(
        source_spread=max(scale * math.sqrt(share), _LEAST_SPREAD),
        run_spread=max(scale * math.sqrt(1 - share), _LEAST_SPREAD),
        rows=int(chosen.sum()),
        sources=len(np.unique(runs.sources[chosen])),
        median_error=float(np.median(np.abs(runs.errors[chosen]))),
    )


def _weights(runs: Runs, chosen: NDArray[np.bool_]) -> Floats:
    """Weight of every row: n chosen rows of a source count as their square root, others nothing."""
    weights = np.zeros(len(chosen))
    for source in np.unique(runs.sources[chosen]):
        rows = chosen & (runs.sources == source)
        weights[rows] = 1 / math.sqrt(rows.sum())
    return weights


def _variances(slower: Floats, weights: Floats, runs: Runs) -> tuple[float, float]:
    """Variances between sources and within them (runs of one kind of plan of one source)."""
    chosen = weights > 0
    slower, weights = slower[chosen], weights[chosen]
    cells = np.char.add(np.char.add(runs.sources[chosen], "|"), runs.kinds[chosen])
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


def kind_correlation(runs: Runs, sites: NDArray[np.str_]) -> float:
    """Correlation of the mean errors of two kinds of plan at one site, without means that are far out."""
    products = squares = 0.0
    for site in np.unique(sites):
        kinds = np.unique(runs.kinds[sites == site])
        means = [float(runs.errors[(sites == site) & (runs.kinds == kind)].mean()) for kind in kinds]
        usual = [mean for mean in means if abs(mean) <= _FAR_OUT]
        for index, first in enumerate(usual):
            for second in usual[:index]:
                products += first * second
                squares += (first**2 + second**2) / 2
    return min(max(products / squares if squares else 0.0, 0.0), 1.0)


def without_parts(runs: Runs, deviations: Floats, everything: float) -> Runs:
    """Runs whose errors are those of a plain step: scaled by its deviation over that of the row's interval."""
    return replace(runs, errors=runs.errors * everything / deviations)
