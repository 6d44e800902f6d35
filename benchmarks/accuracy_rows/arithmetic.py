"""Arithmetic of scores: errors, rates with intervals, rank correlation, regret."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Errors", "Rate", "errors", "kendall_tau", "log_error", "quantile", "rate", "regret"]

_Z95 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of some predictions, as natural logarithms of predicted over measured."""

    rows: int
    median: float | None
    """Of the absolute error."""
    p90: float | None
    bias: float | None
    """Median of the signed error: above zero, predictions are too large."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A share of some cases and its 95 % Wilson interval."""

    cases: int
    share: float | None
    low: float | None
    high: float | None


def log_error(predicted: float, measured: float) -> float:
    """Natural logarithm of predicted over measured."""
    return math.log(predicted / measured)


def quantile(values: Sequence[float], share: float) -> float:
    """Quantile with linear interpolation between the values."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def errors(logarithms: Sequence[float]) -> Errors:
    """Median and 90th percentile of the absolute error, and bias."""
    if not logarithms:
        return Errors(0, None, None, None)
    absolute = [abs(value) for value in logarithms]
    return Errors(len(logarithms), quantile(absolute, 0.5), quantile(absolute, 0.9), quantile(logarithms, 0.5))


def rate(hits: int, cases: int) -> Rate:
    """Share of hits with its Wilson interval (Wilson 1927), which holds for few cases and shares near 0 and 1."""
    if not cases:
        return Rate(0, None, None, None)
    share = hits / cases
    spread = _Z95 * math.sqrt(share * (1 - share) / cases + _Z95**2 / (4 * cases**2))
    middle, scale = share + _Z95**2 / (2 * cases), 1 + _Z95**2 / cases
    return Rate(cases, share, max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale))


def kendall_tau(predicted: Sequence[float], measured: Sequence[float]) -> float | None:
    """Kendall's tau-b; None where one of the two does not differ between any cases."""
    concordant = discordant = ties_predicted = ties_measured = 0
    for i in range(len(predicted)):
        for j in range(i):
            one, other = predicted[i] - predicted[j], measured[i] - measured[j]
            if one == 0:
                ties_predicted += 1
            if other == 0:
                ties_measured += 1
            if one * other > 0:
                concordant += 1
            elif one * other < 0:
                discordant += 1
    pairs = len(predicted) * (len(predicted) - 1) // 2
    scale = math.sqrt((pairs - ties_predicted) * (pairs - ties_measured))
    return None if scale == 0 else (concordant - discordant) / scale


def regret(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Relative cost of choosing the smallest prediction: its measured value over the smallest one, minus one."""
    chosen = min(range(len(predicted)), key=predicted.__getitem__)
    return measured[chosen] / min(measured) - 1
