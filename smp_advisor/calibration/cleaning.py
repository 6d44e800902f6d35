"""The typical step of a log: without warm-up, restarts, saves and evaluation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.calibration.log import Sample

__all__ = ["Typical", "typical"]

_SETTLED = 1.1
"""A leading step that is slower than this factor of the median is warm-up."""
_MOST_WARM_UP = 0.5
"""Largest share of the steps that can be warm-up."""
_FAR = 5.0
"""Distance from the median, in standard deviations, of a step that is no usual one."""
_LEAST_DISTANCE = 0.15
_TO_DEVIATION = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""
_UNKNOWN_SPREAD = 0.03
"""Spread of the step time if a single step was measured."""


@dataclass(frozen=True, kw_only=True)
class Typical:
    """Median of the usual steps."""

    seconds: float
    steps: int
    """Measured values in the median."""
    spread: float
    """Standard deviation of the logarithms of the values in the median."""
    dropped: tuple[tuple[str, int], ...]
    """Reasons for dropped values, with their number."""

    @property
    def error(self) -> float:
        """One standard deviation of the logarithm of the median."""
        return 1.25 * (self.spread if self.steps > 1 else _UNKNOWN_SPREAD) / math.sqrt(self.steps)


def typical(samples: Sequence[Sample]) -> Typical | None:
    """The median step of a log; None without a usable value."""
    segments, repeated = _segments(samples)
    values = [value for segment in segments for value in segment]
    if not values:
        return None
    dropped: dict[str, int] = {}
    if len(segments) > 1:
        dropped["restart (the step number went back)"] = len(segments) - 1
    if repeated:
        dropped["repeated lines of other ranks"] = repeated
    center = median(_late(segments))
    settled = []
    for segment in segments:
        cold = _warm_up(segment, center)
        if cold:
            dropped["warm-up"] = dropped.get("warm-up", 0) + cold
        settled += segment[cold:]
    usual = _usual(settled, dropped)
    logs = [math.log(value) for value in usual]
    mean = math.fsum(logs) / len(logs)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in logs) / max(len(logs) - 1, 1))
    return Typical(seconds=median(usual), steps=len(usual), spread=spread, dropped=tuple(dropped.items()))


def _segments(samples: Sequence[Sample]) -> tuple[list[list[float]], int]:
    """Values between restarts, and the number of values of a step that another rank printed before."""
    segments: list[list[float]] = [[]]
    repeated, last, gap = 0, None, 0
    for sample in samples:
        if sample.step is not None and last is not None:
            if sample.step < last - max(gap, 1):
                segments.append([])
                gap = 0
            elif sample.step <= last:
                repeated += 1
                continue
            else:
                gap = sample.step - last
        last = sample.step if sample.step is not None else last
        if sample.value > 0 and math.isfinite(sample.value):
            segments[-1].append(sample.value)
    return [segment for segment in segments if segment], repeated


def _late(segments: list[list[float]]) -> list[float]:
    """The second half of each segment, which warm-up does not reach."""
    return [value for segment in segments for value in segment[len(segment) // 2 :]]


def _warm_up(segment: list[float], center: float) -> int:
    """Leading values that are warm-up. The first always is if there are more than two."""
    limit = int(len(segment) * _MOST_WARM_UP)
    count = 1 if len(segment) > 2 else 0
    while count < limit and segment[count] > _SETTLED * center:
        count += 1
    return count


def _usual(values: list[float], dropped: dict[str, int]) -> list[float]:
    """Values near the median. The others are counted as dropped."""
    logs = [math.log(value) for value in values]
    center = median(logs)
    reach = max(_FAR * _TO_DEVIATION * median([abs(value - center) for value in logs]), _LEAST_DISTANCE)
    slow = sum(value > center + reach for value in logs)
    fast = sum(value < center - reach for value in logs)
    if slow:
        dropped["slow steps (checkpoint, evaluation, or a stall)"] = slow
    if fast:
        dropped["fast steps (skipped, or with another batch)"] = fast
    return [value for value, log in zip(values, logs, strict=True) if abs(log - center) <= reach]
