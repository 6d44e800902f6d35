"""Arithmetic of scores: rates with intervals, rank correlation, regret."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Rate", "kendall_tau", "rate", "regret"]

_Z95 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Rate:
    """A share of cases with its 95 % Wilson interval."""

    cases: int
    share: float | None
    low: float | None
    high: float | None


def rate(hits: int, cases: int) -> Rate:
    """Share of hits with its Wilson interval (Wilson 1927), valid for few cases and for shares near 0 and 1."""
    if not cases:
        return Rate(0, None, None, None)
    share = hits / cases
    spread = _Z95 * math.sqrt(share * (1 - share) / cases + _Z95**2 / (4 * cases**2))
    middle, scale = share + _Z95**2 / (2 * cases), 1 + _Z95**2 / cases
    return Rate(cases, share, max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale))


def kendall_tau(predicted: Sequence[float], measured: Sequence[float]) -> float | None:
    """Kendall's tau-b; None if all predicted or all measured values are equal."""
    concordant = discordant = ties_predicted = ties_measured = 0
    for i in range(len(predicted)):
        for j in range(i):
            by_prediction, by_measurement = predicted[i] - predicted[j], measured[i] - measured[j]
            if by_prediction == 0:
                ties_predicted += 1
            if by_measurement == 0:
                ties_measured += 1
            if by_prediction * by_measurement > 0:
                concordant += 1
            elif by_prediction * by_measurement < 0:
                discordant += 1
    pairs = len(predicted) * (len(predicted) - 1) // 2
    scale = math.sqrt((pairs - ties_predicted) * (pairs - ties_measured))
    return None if scale == 0 else (concordant - discordant) / scale


def regret(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Relative loss of the choice with the smallest prediction: its measured value over the smallest one, less one."""
    chosen = min(range(len(predicted)), key=predicted.__getitem__)
    return measured[chosen] / min(measured) - 1
