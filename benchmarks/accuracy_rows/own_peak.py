"""Errors of memory before and after calibration with the peak of another run of the same source."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from smp_advisor.costs.learned import LearnedMemory
from smp_advisor.costs.observation import observed
from smp_advisor.costs.transfer import Targets
from smp_advisor.workload import Calibration

from .timed import publication

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.workload import MeasuredRun
    from smp_advisor.workload.calibration import MemoryKind

    from .judge import Judged, Scored

__all__ = ["peak_lines"]

_CALIBRATORS = 5
_GIB = 2**30
_TWO_SIDED = 1.96


def peak_lines(judged: Judged) -> Iterator[str]:
    """One line: errors and shares within the 95 % interval, before and after one peak of the same source."""
    rows = [
        row
        for figure in ("memory_allocated", "memory_total")
        for row in judged.scored.get(figure, ())
        if row.run is not None and row.run.stage is None
    ]
    runs = [_measured(row) for row in rows]
    sources = np.array([publication(row.row) for row in rows])
    before, after, inside_before, inside = [], [], [], []
    for name in np.unique(sources):
        members = np.flatnonzero(sources == name)
        starts = np.unique(np.linspace(0, len(members) - 1, min(_CALIBRATORS, len(members))).round().astype(int))
        for start in starts if len(members) > 1 else ():
            for target in members:
                if target != members[start]:
                    errors = _errors(runs[members[start]], runs[target])
                    for column, value in zip((before, after, inside_before, inside), errors, strict=True):
                        column.append(value)
    if before:
        medians = [100 * float(np.median(values)) for values in (before, after)]
        high = [100 * float(np.quantile(values, 0.9)) for values in (before, after)]
        shares = [100 * float(np.mean(values)) for values in (inside_before, inside)]
        yield (
            f"{'peaks of memory':30} {len(before):5d}  median {medians[0]:5.1f} -> {medians[1]:5.1f} %  "
            f"p90 {high[0]:5.1f} -> {high[1]:5.1f} %  inside {shares[0]:3.0f} -> {shares[1]:3.0f} %"
        )


def _measured(row: Scored) -> MeasuredRun:
    run, label = row.run, row.row.text("mem_class")
    if run is None:
        raise ValueError("a row without a run")
    kind: MemoryKind = "allocated" if label == "allocated" else "reserved" if label == "reserved" else "total"
    layout = run.layout.part(slice(0, 1))
    return observed(run.model, run.cluster, run.job, layout, memory_gib=row.measured, memory_kind=kind)


def _errors(calibrator: MeasuredRun, target: MeasuredRun) -> tuple[float, float, bool, bool]:
    """(error before, after, within the interval before, after) of the target."""
    measured = target.memory_gib or math.nan
    errors = np.array([target.memory_errors_gib]) * _GIB
    predicted, spread = target.predicted_gib, float(np.linalg.norm(target.memory_errors_gib))
    corrected, narrowed = predicted, spread
    learned = LearnedMemory.of(Calibration(runs=(calibrator,)), Targets.of_runs([target.conditions]))
    if learned is not None:
        corrected += float(learned.shifts(errors).sum()) / _GIB
        narrowed = float(learned.spread(errors)[0]) / _GIB
    return (
        abs(math.log(predicted / measured)),
        abs(math.log(max(corrected, 0.1) / measured)),
        abs(predicted - measured) <= _TWO_SIDED * spread,
        abs(corrected - measured) <= _TWO_SIDED * narrowed,
    )
