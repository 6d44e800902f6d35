"""Runs with a measured step time, evaluated together for a fit."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from smp_advisor.costs.constants import constants, overriding
from smp_advisor.costs.evaluate import seconds_columns
from smp_advisor.costs.uncertainty import TWO_SIDED, plan_kinds, stack_group
from smp_advisor.libraries.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from smp_advisor.cluster import Cluster
    from smp_advisor.workload import Job, Model

    from .judge import Judged, Scored
    from .table import Row

    Floats = NDArray[np.float64]

__all__ = ["TIME_FIGURES", "Timed", "publication", "site"]

TIME_FIGURES = ("step_time_a100_h100", "assumed", "step_time_other")


def publication(row: Row) -> str:
    """Publication of a row. Parts of it have names with different brackets or table numbers."""
    name = row.text("source") or row.text("framework")
    return re.sub(r"\s*(\(.*|table \d+.*)$", "", name)


def site(row: Row) -> str:
    """Publication and GPU of a row: rows of one site share hardware, code and habits."""
    return f"{publication(row)}, {row.text('gpu')}"


class Timed:
    """Runs with a measured step time.

    Runs that differ in their layout only are evaluated as one array.
    """

    def __init__(self, scored: Sequence[Scored], users_code: Sequence[Scored] = ()) -> None:
        self.rows = [row for row in (*scored, *users_code) if row.run is not None]
        self.users_code = np.array([i >= len(self.rows) - len(users_code) for i in range(len(self.rows))], dtype=bool)
        self.measured = np.array([row.measured for row in self.rows], dtype=np.float64)
        self.publications = np.array([publication(row.row) for row in self.rows])
        self.sites = np.array([site(row.row) for row in self.rows])
        self._batches = self._batched()
        self._moved: dict[str, set[int]] = {}

    @classmethod
    def of(cls, judged: Judged, users_code: Judged | None = None) -> Timed:
        """All runs with a step time; `users_code` are those of the tables of users' code."""
        both = [
            [row for figure in TIME_FIGURES for row in group.scored.get(figure, ())] if group is not None else []
            for group in (judged, users_code)
        ]
        return cls(*both)

    def _batched(self) -> list[tuple[Model, Cluster, Job, Layout, NDArray[np.intp]]]:
        groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for index, row in enumerate(self.rows):
            if row.run is not None:
                run, layout = row.run, row.run.layout
                shared = (layout.state_bytes, layout.stack, layout.saves_frozen)
                groups[run.model, run.cluster, run.job, *shared].append(index)
        batches = []
        for indices in groups.values():
            runs = [run for i in indices if (run := self.rows[i].run) is not None]
            layout = Layout.concatenate([run.layout for run in runs])
            batches.append((runs[0].model, runs[0].cluster, runs[0].job, layout, np.array(indices)))
        return batches

    def kinds(self) -> NDArray[np.str_]:
        """Kind of plan of every row."""
        return np.array(
            [str(plan_kinds(run.layout, run.cluster)[0]) for row in self.rows if (run := row.run) is not None]
        )

    def groups(self) -> NDArray[np.str_]:
        """Group of stacks of every row."""
        return np.array([stack_group(run.job.stack) for row in self.rows if (run := row.run) is not None])

    def deviations(self) -> Floats:
        """Standard deviation of every row's interval, shape (rows,)."""
        ends = [row.interval or (row.predicted, row.predicted) for row in self.rows]
        return np.array([math.log(high / low) / (2 * TWO_SIDED) for low, high in ends])

    def names(self) -> list[str]:
        """Constants that are fitted: of the step time, with a prior, not assumed, and of a GPU that a row has."""
        gpus = {row.row.text("gpu").upper() for row in self.rows}
        return [
            name
            for name, constant in constants().items()
            if constant.prior is not None
            and not constant.assumed
            and name.split(".")[0] in {"gpu", "time", "communication"}
            and (not name.startswith("gpu.") or any(gpu.startswith(name.split(".")[2].upper()) for gpu in gpus))
        ]

    def errors(self, values: Mapping[str, float]) -> Floats:
        """Logarithm of predicted over measured of every row, shape (rows,)."""
        return self._errors(values, range(len(self._batches)), np.empty(len(self.rows)))

    def _errors(self, values: Mapping[str, float], batches: Sequence[int], result: Floats) -> Floats:
        with overriding(values):
            for number in batches:
                model, cluster, job, layout, indices = self._batches[number]
                seconds = sum(seconds_columns(model, cluster, job, layout).values())
                result[indices] = np.log(seconds / self.measured[indices])
        return result

    def jacobian(self, values: Mapping[str, float], step: float = 0.04) -> tuple[Floats, Floats]:
        """Errors, and their derivatives by the logarithm of every constant, shape (rows, constants).

        Batches that a constant did not change at the first call are not evaluated for it again.
        """
        base, columns = self.errors(values), []
        for name, value in values.items():
            moved = self._moved.get(name)
            batches = range(len(self._batches)) if moved is None else sorted(moved)
            there = self._errors({**values, name: value * math.exp(step)}, batches, base.copy())
            column = (there - base) / step
            if moved is None:
                self._moved[name] = {n for n in batches if (column[self._batches[n][-1]] != 0).any()}
            columns.append(column)
        return base, np.stack(columns, axis=1)
