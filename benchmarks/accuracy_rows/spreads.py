"""Intervals and spreads of the step time, from runs whose entire source was left out of the fit."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from smp_advisor.costs.uncertainty import Doubt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = [
    "ANY",
    "Covered",
    "Runs",
    "Spread",
    "composition",
    "coverage",
    "kind_correlation",
    "spread_table",
    "without_parts",
]

ANY = "any"
_LEVEL = 0.95
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
    doubts: Floats
    """The fields of `Doubt` of every row, shape (rows, fields)."""

    def take(self, rows: NDArray[np.bool_]) -> Runs:
        """Selected rows."""
        return Runs(self.errors[rows], self.groups[rows], self.kinds[rows], self.sources[rows], self.doubts[rows])


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


_NAMES = ("everything", *Doubt.__dataclass_fields__, "low", "high")
_PRIORS = (0.1, 0.5, 0.4, 0.4, 0.2, 0.25, 0.2, 1.96, 2.4)
"""The error of every step; of the parts of the step, of offloading, of SMP v1's hosts at unlike numbers of blocks (an
exponent between 0 and 1) and of a GPU without runs, which add to it in squares; and quantiles in units of their sum."""
_PRIOR_SPREADS = (0.5, 0.3, 0.3, 0.3, 0.7, 0.3, 0.3, 0.3, 0.3)
_ASSUMED = ("extrapolated", "unmeasured")
"""No run shows these errors."""
_PRIOR_WEIGHT = 0.15
"""Few runs have large shares of one part, so the priors of the parts count. With a tenth of this weight, the interval
of a source that no other resembles is too narrow, and its score worse."""
_PENALTY = 2 / (1 - _LEVEL)
_PENALTY_OF_FIT = 24.0
"""The penalty in the fit. With 40, a few runs far out, each of a source that no other resembles, widen the intervals of
all. With 24, sources that were left out of the fit have the least score, in which the penalty is 40."""


def composition(runs: Runs) -> dict[str, float]:
    """Figures of which the interval of a plan is composed: those with the least interval score.

    The score of an interval is its width plus 40 times the distance of a value outside of it (Gneiting and Raftery
    2007, "Strictly proper scoring rules", section 6.2). Every source counts as the square root of its number of runs.
    """
    # The error of a GPU without runs is assumed: those with rows and no instance are cards of workstations.
    runs = runs.take(runs.doubts[:, _NAMES.index("unmeasured") - 1] == 0)
    weights = _weights(runs, np.ones(len(runs.errors), dtype=bool))
    prior, spreads = np.log(_PRIORS), np.array(_PRIOR_SPREADS)
    free = np.array([name not in _ASSUMED for name in _NAMES])

    def every(values: Floats) -> Floats:
        result = prior.copy()
        result[free] = values
        return result

    def loss(values: Floats) -> float:
        score = np.average(interval_score(runs, every(values), _PENALTY_OF_FIT), weights=weights)
        return float(score + _PRIOR_WEIGHT * np.mean(((values - prior[free]) / spreads[free]) ** 2))

    return dict(zip(_NAMES, np.exp(every(_minimum(loss, prior[free]))).tolist(), strict=True))


def without_parts(runs: Runs, composed: Mapping[str, float]) -> Runs:
    """Runs with the errors that they would have without the parts of the step that the composition describes."""
    low, _ = _ends(runs, np.log(list(composed.values())))
    return replace(runs, errors=runs.errors * composed["everything"] * composed["low"] / -low)


def _ends(runs: Runs, logarithms: Floats) -> tuple[Floats, Floats]:
    """Ends of the interval of every row, as logarithms of measured over predicted."""
    everything, *parts, low, high = np.exp(logarithms)
    scale = np.sqrt(everything**2 + (runs.doubts * np.array(parts)) ** 2 @ np.ones(len(parts)))
    return -low * scale, high * scale


def interval_score(runs: Runs, logarithms: Floats, penalty: float = _PENALTY) -> Floats:
    """Interval score of every row, shape (rows,)."""
    low, high = _ends(runs, logarithms)
    outside = np.maximum(low + runs.errors, 0) + np.maximum(-runs.errors - high, 0)
    score: Floats = high - low + penalty * outside
    return score


def _minimum(function: Callable[[Floats], float], start: Floats, steps: int = 600) -> Floats:
    """Minimum of a function of a few numbers (Nelder and Mead 1965)."""
    points = [start, *(start + 0.3 * np.eye(len(start)))]
    values = [function(point) for point in points]
    for _ in range(steps):
        order = np.argsort(values, kind="stable")
        points, values = [points[i] for i in order], [values[i] for i in order]
        middle = np.mean(points[:-1], axis=0)
        tried = middle + (middle - points[-1])
        value = function(tried)
        if value < values[0]:
            further = middle + 2 * (middle - points[-1])
            if (reached := function(further)) < value:
                tried, value = further, reached
        elif value >= values[-2]:
            tried = middle + 0.5 * (points[-1] - middle)
            value = function(tried)
        if value < values[-1]:
            points[-1], values[-1] = tried, value
        else:
            points = [points[0], *(points[0] + 0.5 * (point - points[0]) for point in points[1:])]
            values = [values[0], *(function(point) for point in points[1:])]
    return points[int(np.argmin(values))]


@dataclass(frozen=True)
class Covered:
    """Intervals of every row that the other sources give, arrays of shape (rows,)."""

    inside: NDArray[np.bool_]
    widths: Floats
    """Widths of the intervals of the logarithm."""
    scores: Floats


def coverage(runs: Runs, fitted: NDArray[np.bool_]) -> Covered:
    """Intervals of every row from the `fitted` rows of other sources."""
    ends, scores = np.zeros((2, len(runs.errors))), np.zeros(len(runs.errors))
    for source in np.unique(runs.sources):
        rows = runs.sources == source
        others = fitted & ~rows
        if others.any():
            values = np.log(list(composition(runs.take(others)).values()))
            ends[:, rows] = _ends(runs.take(rows), values)
            scores[rows] = interval_score(runs.take(rows), values)
    inside = (ends[0] <= -runs.errors) & (-runs.errors <= ends[1])
    return Covered(inside, ends[1] - ends[0], scores)
