"""Errors of the step time after a calibration with another run of the same source."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from smp_advisor.costs.constants import constants
from smp_advisor.costs.learned import learned_time
from smp_advisor.costs.observation import observed, predicted_step
from smp_advisor.costs.uncertainty import narrowed
from smp_advisor.workload import Calibration

from .predict import step_time_doubt
from .sites import Linear
from .timed import Timed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.libraries.layout import Layout
    from smp_advisor.workload import MeasuredRun

    from .judge import Judged
    from .plans import Run

__all__ = ["Pair", "after_runs", "pairs"]

_CALIBRATORS = 5
"""Most runs of a source that calibrate in turn, spread over its rows."""


@dataclass(frozen=True)
class Pair:
    """A run predicted after a calibration with another run of its source."""

    source: str
    same_site: bool
    after: float
    """Logarithm of predicted over measured."""
    within: bool
    """Whether the measured step time is within the stated interval."""


class _Rows:
    """Rows with the errors of a fit without their source, as measured runs."""

    def __init__(self, rows: Timed) -> None:
        point = Linear(rows, {name: constants()[name].value for name in rows.names()})
        self.rows, self.errors = rows, point.left_out()
        self.runs: list[Run] = [row.run for row in rows.rows if row.run is not None]
        self.layouts: list[Layout] = [run.layout.part(np.arange(1)) for run in self.runs]
        self.steps = [
            predicted_step(run.model, run.cluster, run.job, layout)
            for run, layout in zip(self.runs, self.layouts, strict=True)
        ]
        self.measured: list[MeasuredRun] = [self._measured(index) for index in range(len(self.runs))]

    def _measured(self, index: int) -> MeasuredRun:
        run = self.runs[index]
        total = float(sum(self.steps[index].seconds.values()))
        # As measured by a cost model that is fitted without the source.
        seconds = total * math.exp(-self.errors[index])
        result = observed(run.model, run.cluster, run.job, self.layouts[index], step_seconds=seconds)
        conditions = replace(result.conditions, instance=f"{run.cluster.instance.name} {self.rows.sites[index]}"[:200])
        return replace(result, conditions=conditions)

    def pair(self, calibrating: int, target: int) -> Pair:
        run, measured = self.runs[target], self.measured[target]
        # Names of sites stand for instances: published clusters have no names.
        instance = replace(run.cluster.instance, name=measured.conditions.instance)
        cluster = replace(run.cluster, instance=instance)
        factor, width = learned_time(
            Calibration(runs=(self.measured[calibrating],)),
            run.model,
            cluster,
            run.job,
            self.layouts[target],
        )
        total = float(sum(self.steps[target].seconds.values()))
        seconds = measured.step_seconds or math.nan
        doubt = step_time_doubt(run.model, cluster, run.job, self.layouts[target])
        after = total * float(factor)
        conditions = measured.conditions
        ends = narrowed(conditions.kind, conditions.stack, float(width), doubt)
        return Pair(
            source=str(self.rows.publications[target]),
            same_site=self.rows.sites[target] == self.rows.sites[calibrating],
            after=math.log(after / seconds),
            within=ends[0] <= seconds / after <= ends[1],
        )


def pairs(rows: _Rows) -> Iterator[Pair]:
    """Every run of a source with several, predicted after a calibration with each of a few others."""
    for name in np.unique(rows.rows.publications):
        members = np.flatnonzero(rows.rows.publications == name)
        starts = np.unique(np.linspace(0, len(members) - 1, min(_CALIBRATORS, len(members))).round().astype(int))
        for start in starts:
            for target in members:
                if target != members[start]:
                    yield rows.pair(int(members[start]), int(target))


def after_runs(judged: Judged, users: Judged) -> dict[str, float]:
    """Figures of every other run of a source after one of its runs on the same GPU; each source has one vote."""
    same = [pair for pair in pairs(_Rows(Timed.of(judged, users))) if pair.same_site]
    groups = [[pair for pair in same if pair.source == name] for name in sorted({pair.source for pair in same})]
    if not groups:
        return {}
    errors = [np.abs([pair.after for pair in group]) for group in groups]
    return {
        "pairs": len(same),
        "median": float(np.median([np.median(of) for of in errors])),
        "p90": float(np.median([np.quantile(of, 0.9) for of in errors])),
        "inside": float(np.mean([np.mean([pair.within for pair in group]) for group in groups])),
    }
