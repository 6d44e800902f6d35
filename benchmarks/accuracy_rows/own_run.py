"""Errors of the step time before and after calibration with other runs of the same source."""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smp_advisor.costs.constants import constants
from smp_advisor.costs.learned import learned_time
from smp_advisor.costs.observation import observed, predicted_step
from smp_advisor.costs.uncertainty import narrowed, step_time_factors
from smp_advisor.workload import Calibration

from .judge import judge
from .predict import step_time_doubt
from .sites import Linear
from .table import TableError, read_table
from .timed import Timed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smp_advisor.libraries.layout import Layout
    from smp_advisor.workload import MeasuredRun

    from .judge import Judged
    from .plans import Run

__all__ = ["Pair", "after_runs", "main", "pairs"]

_VALIDATION = Path(__file__).parents[2] / "validation"
_CALIBRATORS = 5
"""Most runs of a source that calibrate in turn, spread over its rows."""


@dataclass(frozen=True)
class Pair:
    """A run predicted before and after a calibration with other runs of its source."""

    source: str
    users_code: bool
    same_site: bool
    before: float
    """Logarithm of predicted over measured."""
    after: float
    within_before: bool
    within: bool
    """Whether the measured step time is within the stated interval, before and after."""
    width: float
    """Width of the interval of the logarithm afterwards."""


class _Rows:
    """Rows with the errors of a fit without their source, as measured runs."""

    def __init__(self, rows: Timed) -> None:
        point = Linear(rows, {name: constants()[name].value for name in rows.names()})
        self.rows, self.errors = rows, point.left_out()
        self.runs: list[Run] = [row.run for row in rows.rows if row.run is not None]
        self.layouts: list[Layout] = [run.layout.part(slice(0, 1)) for run in self.runs]
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

    def pair(self, calibration: Sequence[int], target: int) -> Pair:
        run, measured = self.runs[target], self.measured[target]
        # Names of sites stand for instances: published clusters have no names.
        instance = replace(run.cluster.instance, name=measured.conditions.instance)
        cluster = replace(run.cluster, instance=instance)
        factor, width = learned_time(
            Calibration(runs=tuple(self.measured[index] for index in calibration)),
            run.model,
            cluster,
            run.job,
            self.layouts[target],
        )
        total = float(sum(self.steps[target].seconds.values()))
        seconds = measured.step_seconds or math.nan
        doubt = step_time_doubt(run.model, cluster, run.job, self.layouts[target])
        factors = step_time_factors(doubt)
        after = total * float(factor)
        conditions = measured.conditions
        ends = narrowed(conditions.kind, conditions.stack, float(width), doubt)
        return Pair(
            source=str(self.rows.publications[target]),
            users_code=bool(self.rows.users_code[target]),
            same_site=self.rows.sites[target] == self.rows.sites[calibration[0]],
            before=math.log(total / seconds),
            after=math.log(after / seconds),
            within_before=factors[0] <= seconds / total <= factors[1],
            within=ends[0] <= seconds / after <= ends[1],
            width=math.log(ends[1] / ends[0]),
        )


def pairs(rows: _Rows, runs: int = 1) -> Iterator[Pair]:
    """Every run of a source with several, predicted after a calibration with `runs` others."""
    for name in np.unique(rows.rows.publications):
        members = np.flatnonzero(rows.rows.publications == name)
        if len(members) <= runs:
            continue
        starts = np.unique(np.linspace(0, len(members) - 1, min(_CALIBRATORS, len(members))).round().astype(int))
        for start in starts:
            chosen = [
                int(members[(start + step * max(len(members) // runs, 1)) % len(members)]) for step in range(runs)
            ]
            for target in members:
                if target not in chosen:
                    yield rows.pair(chosen, int(target))


def _line(title: str, chosen: Sequence[Pair]) -> str:
    before, after = (np.abs([getattr(pair, side) for pair in chosen]) for side in ("before", "after"))
    inside = 100 * np.mean([pair.within for pair in chosen])
    inside_before = 100 * np.mean([pair.within_before for pair in chosen])
    return (
        f"{title[:30]:30} {len(chosen):5d}  median {100 * np.median(before):5.1f} -> {100 * np.median(after):5.1f} %  "
        f"p90 {100 * np.quantile(before, 0.9):5.1f} -> {100 * np.quantile(after, 0.9):5.1f} %  "
        f"inside {inside_before:3.0f} -> {inside:3.0f} %  width {np.median([p.width for p in chosen]):.2f}"
    )


def _once(chosen: Sequence[Pair]) -> str:
    """Medians of the sources, each counted once."""
    sources = sorted({pair.source for pair in chosen})
    of = {name: [pair for pair in chosen if pair.source == name] for name in sources}
    sides = [
        np.median([np.median(np.abs([getattr(pair, side) for pair in of[name]])) for name in sources])
        for side in ("before", "after")
    ]
    inside = np.mean([np.mean([pair.within for pair in of[name]]) for name in sources])
    return (
        f"{'  each source once':30} {len(sources):5d}  median {100 * sides[0]:5.1f} -> {100 * sides[1]:5.1f} %  "
        f"inside {100 * inside:3.0f} %"
    )


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report. The exit status is 2 if a file is not a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", type=Path, metavar="CSV", help="tables of step times; default: all")
    parser.add_argument("--sources", action="store_true", help="also print every source")
    chosen = parser.parse_args(arguments)
    try:
        tables = [read_table(path) for path in chosen.tables or sorted(_VALIDATION.glob("*/throughput*.csv"))]
    except TableError as error:
        print(error, file=sys.stderr)
        return 2
    judged = judge(table for table in tables if not table.users_code)
    rows = _Rows(Timed.of(judged, judge(table for table in tables if table.users_code)))
    print("\n".join(_report(rows, sources=chosen.sources)))
    return 0


def _report(rows: _Rows, *, sources: bool) -> Iterator[str]:
    """Errors after one run and after three."""
    for runs in (1, 3):
        every = list(pairs(rows, runs))
        yield f"after {runs} run{'s' if runs > 1 else ''} of the same source (each source left out of the fit)"
        for title, part in (
            ("published, same GPU", [pair for pair in every if not pair.users_code and pair.same_site]),
            ("published, other GPU", [pair for pair in every if not pair.users_code and not pair.same_site]),
            ("users' code on AWS", [pair for pair in every if pair.users_code]),
        ):
            if part:
                yield _line(title, part)
                yield _once(part)
        if sources and runs == 1:
            for name in sorted({pair.source for pair in every}):
                yield _line(f"  {name}", [pair for pair in every if pair.source == name])
