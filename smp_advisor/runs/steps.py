"""Steps of a run: those of a log that grows, and the typical one without warm-up, restarts, saves and evaluation."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from smp_advisor.core.files import json_values
from smp_advisor.runs.failures import read_failure
from smp_advisor.runs.readers import Log, Sample, read_text, read_trainer_state

if TYPE_CHECKING:
    from collections.abc import Sequence


STEADY_STEPS = 20
"""Regular steps after which a run calibrates its own prediction."""
_SETTLED = 1.1
"""A leading step that is slower than this factor of the median is warm-up."""
_MOST_WARM_UP, _FEW = 0.2, 3
"""Largest share of the steps that can be warm-up, and a number that always can: more is a change of the step time."""
_FAR = 5.0
"""Distance from the median, in standard deviations, of a step that is no usual one."""
_LEAST_DISTANCE = 0.15
_TO_DEVIATION = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""
_UNKNOWN_SPREAD = 0.03
"""Spread of the step time if a single step was measured."""
_LEAST_PART = 8
"""Steps on both sides of a lasting change."""
_LEAST_CHANGE = 0.08
"""Least change of the logarithm that is one."""
_CERTAIN = 4.0
"""Standard deviations of the steps on both sides that it has to exceed."""
_OUT_OF_ORDER, _FAR_BACK = 3, 10
"""Samples in which a log of several ranks catches up after a step number that went back, and lines of it that are more
than such a log is out of order."""


@dataclass(frozen=True, kw_only=True)
class Typical:
    """Median of the usual steps, since the last lasting change."""

    seconds: float
    steps: int
    """Measured values in the median."""
    spread: float
    """Standard deviation of the logarithms of the values in the median."""
    dropped: tuple[tuple[str, int], ...]
    """Reasons for dropped values, with their number."""
    wall_seconds: float
    """Mean with slow steps and stalls, without warm-up."""
    wall_error: float
    """One standard deviation of the logarithm of that mean."""
    changed: tuple[int | None, float] | None = None
    """Step since which the time is another for good, and the seconds before it; None without a change."""
    trend: float = 0.0
    """Change of the logarithm from the first to the last step, if a line explains most of the spread; else 0."""
    rounding: float = 0.0
    """One standard deviation of the logarithm by a clock with full seconds."""
    usual: tuple[Sample, ...] = ()
    """The values in the median."""

    @property
    def error(self) -> float:
        """One standard deviation of the logarithm of the median."""
        sampled = 1.25 * (self.spread if self.steps > 1 else _UNKNOWN_SPREAD) / math.sqrt(self.steps)
        return self.rounding or sampled


def typical(samples: Sequence[Sample]) -> Typical | None:
    """Return the median step of a log; None without a usable value."""
    segments, repeated = _segments(samples)
    if not segments:
        return None
    dropped: dict[str, int] = {}
    if len(segments) > 1:
        dropped["restart (the step number went back)"] = len(segments) - 1
    if repeated:
        dropped["repeated lines of other ranks"] = repeated
    # Warm-up does not reach the second half of a segment.
    center = median([sample.value for segment in segments for sample in segment[len(segment) // 2 :]])
    settled: list[Sample] = []
    for segment in segments:
        cold = 1 if len(segment) > 2 else 0  # the first step always is, of more than two
        while cold < len(segment) // 2 and segment[cold].value > _SETTLED * center:
            cold += 1
        if cold > max(_FEW, _MOST_WARM_UP * len(segment)):
            cold = 1
        if cold:
            dropped["warm-up"] = dropped.get("warm-up", 0) + cold
        settled += segment[cold:]
    changed, place = None, _change([math.log(sample.value) for sample in settled])
    if place:
        changed = (settled[place].step, median([sample.value for sample in settled[:place]]))
        dropped["before the step time changed"] = place
        settled = settled[place:]
    return _of_settled(settled, dropped, changed)


def _of_settled(
    settled: Sequence[Sample], dropped: dict[str, int], changed: tuple[int | None, float] | None
) -> Typical:
    """Return the typical step of samples without warm-up."""
    distances = [math.log(sample.value) for sample in settled]
    middle = median(distances)
    distances = [distance - middle for distance in distances]
    reach = max(_FAR * _TO_DEVIATION * median(map(abs, distances)), _LEAST_DISTANCE)
    clocks = [sample.readings[-1][1] - sample.readings[0][1] for sample in settled if sample.readings]
    reach += math.log1p(1 / median(clocks)) if clocks else 0.0  # its clock shows full seconds
    if slow := sum(distance > reach for distance in distances):
        dropped["slow steps (checkpoint, evaluation, or a stall)"] = slow
    if fast := sum(distance < -reach for distance in distances):
        dropped["fast steps (skipped, or with another batch)"] = fast
    usual = [sample for sample, distance in zip(settled, distances, strict=True) if abs(distance) <= reach]
    logs = [math.log(sample.value) for sample in usual]
    mean = math.fsum(logs) / len(logs)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in logs) / max(len(logs) - 1, 1))
    seconds, rounding = median([sample.value for sample in usual]), 0.0
    if all(sample.readings for sample in usual):
        seconds, rounding = _slope([sample.readings for sample in usual])
    lengths = [sample.readings[-1][0] - sample.readings[0][0] if sample.readings else 1.0 for sample in settled]
    wall = math.fsum(sample.value * length for sample, length in zip(settled, lengths, strict=True)) / sum(lengths)
    if len(usual) == len(settled):
        wall = seconds
    variance = math.fsum((sample.value - wall) ** 2 for sample in settled) / max(len(settled) - 1, 1)
    return Typical(
        seconds=seconds,
        steps=len(usual),
        spread=spread,
        dropped=tuple(dropped.items()),
        wall_seconds=wall,
        wall_error=math.sqrt(variance / len(settled)) / wall,
        changed=changed,
        trend=_trend(logs, spread),
        rounding=rounding,
        usual=tuple(usual),
    )


def _slope(windows: Sequence[tuple[tuple[float, float], ...]]) -> tuple[float, float]:
    """Seconds per step of windows of readings with full seconds, by least squares, and the error of the logarithm.

    Windows that touch are one line; others have starts of their own.
    """
    lines: list[list[tuple[float, float]]] = []
    for window in windows:
        if lines and lines[-1][-1] == window[0]:
            lines[-1] += window[1:]
        else:
            lines.append(list(window))
    products = squares = 0.0
    for line in lines:
        middle, mean = (math.fsum(values) / len(line) for values in zip(*line, strict=True))
        products += math.fsum((step - middle) * (time - mean) for step, time in line)
        squares += math.fsum((step - middle) ** 2 for step, _ in line)
    slope = products / squares
    return slope, 1 / math.sqrt(12 * squares) / slope


def _change(logs: Sequence[float]) -> int:
    """Return the place of a lasting change in a row of logarithms; 0 without one."""
    if len(logs) < 2 * _LEAST_PART:
        return 0
    smooth = [median(logs[max(place - 2, 0) : place + 3]) for place in range(len(logs))]  # without single stalls
    # The split whose two means explain most of the scatter: their distance squared, times the sizes of the parts.
    total, before, most, change = math.fsum(smooth), 0.0, 0.0, 0
    for place in range(1, len(smooth)):
        before += smooth[place - 1]
        after = len(smooth) - place
        explained = (before / place - (total - before) / after) ** 2 * place * after
        if place >= _LEAST_PART <= after and explained > most:
            most, change = explained, place
    if not change:
        return 0
    sides = smooth[:change], smooth[change:]
    middles = [median(side) for side in sides]
    noise = max(_TO_DEVIATION * median([abs(v - m) for v in side]) for side, m in zip(sides, middles, strict=True))
    apart = abs(middles[1] - middles[0])
    return change if apart > max(_LEAST_CHANGE, _CERTAIN * noise) else 0


def _trend(logs: Sequence[float], spread: float) -> float:
    """Change of logarithms along a line from the first to the last, if it explains most of their spread; else 0."""
    n = len(logs)
    if n < 2 * _LEAST_PART or not spread:
        return 0.0
    middle, mean = (n - 1) / 2, math.fsum(logs) / n
    squares = n * (n * n - 1) / 12
    slope = math.fsum((place - middle) * (value - mean) for place, value in enumerate(logs)) / squares
    explained = slope * slope * squares / ((n - 1) * spread * spread)
    return slope * (n - 1) if explained > 0.5 and abs(slope * (n - 1)) > _LEAST_CHANGE else 0.0


def _segments(samples: Sequence[Sample]) -> tuple[list[list[Sample]], int]:
    """Return the samples between restarts, and the number of values of a step that another rank printed before."""
    segments: list[list[Sample]] = [[]]
    repeated, last, gap = 0, None, 0
    for place, sample in enumerate(samples):
        if sample.step is not None and last is not None:
            if sample.step < last - max(gap, 1) and _restarts(samples, place, last, max(gap, 1)):
                segments.append([])
                gap = 0
            elif sample.step <= last:
                repeated += 1
                continue
            else:
                gap = sample.step - last
        last = sample.step if sample.step is not None else last
        if sample.value > 0 and math.isfinite(sample.value):
            segments[-1].append(sample)
    return [segment for segment in segments if segment], repeated


def _restarts(samples: Sequence[Sample], place: int, last: int, gap: int) -> bool:
    """Whether the run goes on from a step number that went back, or a log of other ranks is a little out of order."""
    steps = [sample.step for sample in samples[place : place + 1 + _OUT_OF_ORDER] if sample.step is not None]
    if any(step >= last for step in steps[1:]):
        return False
    return last - steps[0] > _FAR_BACK * gap or all(after > before for before, after in pairwise(steps))


def log_of_text(text: str) -> Log:
    """Measured steps in the text of a log; an empty log without any."""
    if text.lstrip().startswith("{"):
        try:
            document = json_values(text)
        except ValueError:
            document = None
        if isinstance(document, dict) and "log_history" in document:
            return read_trainer_state(document)
    failure = read_failure(text)
    ran_out = failure is not None and failure.of_plan
    log = read_text(text)
    return replace(log, out_of_memory=ran_out)
