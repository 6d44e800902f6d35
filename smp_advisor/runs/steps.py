"""Steps of a run: those of a log that grows, and the typical one without warm-up, restarts, saves and evaluation."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from smp_advisor.files import has_too_many_values
from smp_advisor.profiling.local_run import losses_in
from smp_advisor.runs.failures import read_failure
from smp_advisor.runs.readers import Log, Sample, read_json_lines, read_text, read_trainer_state

if TYPE_CHECKING:
    from collections.abc import Sequence


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
    # Warm-up does not reach the second half of a segment.
    center = median([value for segment in segments for value in segment[len(segment) // 2 :]])
    settled = []
    for segment in segments:
        cold = 1 if len(segment) > 2 else 0  # the first step always is, of more than two
        while cold < int(len(segment) * _MOST_WARM_UP) and segment[cold] > _SETTLED * center:
            cold += 1
        if cold:
            dropped["warm-up"] = dropped.get("warm-up", 0) + cold
        settled += segment[cold:]
    distances = [math.log(value) for value in settled]
    middle = median(distances)
    distances = [distance - middle for distance in distances]
    reach = max(_FAR * _TO_DEVIATION * median(map(abs, distances)), _LEAST_DISTANCE)
    if slow := sum(distance > reach for distance in distances):
        dropped["slow steps (checkpoint, evaluation, or a stall)"] = slow
    if fast := sum(distance < -reach for distance in distances):
        dropped["fast steps (skipped, or with another batch)"] = fast
    usual = [value for value, distance in zip(settled, distances, strict=True) if abs(distance) <= reach]
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


def log_of_text(text: str) -> Log:
    """Measured steps in the text of a log; an empty log without any."""
    if text.lstrip().startswith("{") and not has_too_many_values(text):
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            document = None
        if isinstance(document, dict) and "log_history" in document:
            return read_trainer_state(document)
    failure = read_failure(text)
    ran_out = failure is not None and failure.of_plan
    log = read_text(text)
    rows = log if log.samples else read_json_lines(text)
    return replace(rows if rows.samples else log, out_of_memory=ran_out)


_MOST_SAMPLES = 200_000
_STEP = re.compile(r"\b(?:step|iteration|Batch):?\s+(\d+(?:,\d{3})*)")


class Steps:
    """Measurements of a log that grows."""

    def __init__(self) -> None:
        self.log = Log(title="log without measured steps")
        self.step: int | None = None
        self.loss: float | None = None
        self.infinite_loss = ""

    def add(self, text: str) -> bool:
        """Read new lines; whether they have measured steps."""
        if not text:
            return False
        old = self.log
        # The last line of the exported script is JSON, too.
        self.log = new = read_text(text) if old.samples and old.title != "JSON lines" else log_of_text(text)
        if not new.samples or new.unit == old.unit or not old.samples:
            peaks = dict(old.peak_gib)
            for kind, value in new.peak_gib.items():
                peaks[kind] = max(value, peaks.get(kind, 0.0))
            samples = (*old.samples, *new.samples)[-_MOST_SAMPLES:]
            base = new if new.samples else old
            self.log = replace(base, samples=samples, peak_gib=peaks, out_of_memory=False)
        for line in text.splitlines():
            for loss in losses_in([line[:2000]]) if "oss" in line else ():  # of any case
                self.loss = loss
                if not math.isfinite(loss) and not self.infinite_loss:
                    match = _STEP.search(line)
                    self.infinite_loss = f"The loss is {loss} {f'at step {match[1]}' if match else 'in the log'}"
        self.step = next((s.step for s in reversed(new.samples) if s.step is not None), self.step)
        return bool(new.samples)
