"""The listed plans of a search as plain data: the plans with their scores, not the columns of the search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from smp_advisor.errors import StorageError
from smp_advisor.libraries.layout import layout_of
from smp_advisor.libraries.library import plan_fields
from smp_advisor.libraries.plan import Plan
from smp_advisor.libraries.space import Space
from smp_advisor.search import Objective, Scores, SearchResult
from smp_advisor.storage.numbers import number_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.workload.job import Job

__all__ = ["result_as_plain", "result_from_plain"]

_OF_PLANS = ("peak_gib", "needed_gib", "margin")
_OF_RANKED = ("step_seconds",)
_KEYS = {"cluster", "objective", "plans", "ranked", "scores", *_OF_PLANS, *_OF_RANKED}
_ROW = "row"


def result_as_plain(result: SearchResult) -> dict[str, Any]:
    """Cluster, plans and columns of a search."""
    return {
        "cluster": result.cluster,
        "objective": result.objective,
        "plans": [result.space.plan(row) for row in range(len(result.space))],
        **{name: getattr(result, name).tolist() for name in ("ranked", *_OF_PLANS, *_OF_RANKED)},
        "scores": {name: column.tolist() for name, column in vars(result.scores).items()},
    }


def result_from_plain(values: Mapping[str, Any], job: Job) -> SearchResult:
    """The inverse of `result_as_plain` for restored parts.

    Raises
    ------
    StorageError
        The parts do not belong together.
    """
    from smp_advisor.cluster.cluster import Cluster

    cluster, plans, scores = (values.get(name) for name in ("cluster", "plans", "scores"))
    if values.keys() != _KEYS or not isinstance(plans, tuple) or not isinstance(scores, Mapping):
        raise StorageError("The stored alternatives lack a part.")
    if not plans or not all(isinstance(plan, Plan) and plan.library == plans[0].library for plan in plans):
        raise StorageError("The stored alternatives must be plans of one library.")
    objective = next((name for name in get_args(Objective) if name == values["objective"]), None)
    if not isinstance(cluster, Cluster) or objective is None:
        raise StorageError("The stored alternatives lack their cluster or objective.")
    ranked = _column(values["ranked"], len(plans), most=True).astype(np.intp)
    if len(ranked) and not 0 <= ranked.min() <= ranked.max() < len(plans):
        raise StorageError("The stored alternatives have a row without a plan.")
    if scores.keys() != {entry.name for entry in fields(Scores)}:
        raise StorageError("The stored alternatives lack a score.")
    return SearchResult(
        cluster=cluster,
        objective=objective,
        space=_space(plans, job, cluster),
        ranked=ranked,
        scores=Scores(**{name: _column(column, len(ranked)) for name, column in scores.items()}),
        **{name: _column(values[name], len(plans)) for name in _OF_PLANS},
        **{name: _column(values[name], len(ranked)) for name in _OF_RANKED},
    )


def _column(values: Any, rows: int, *, most: bool = False) -> NDArray[Any]:
    """A column of numbers, with as many rows as there are plans, or at most as many."""
    numbers = [number_of(value) for value in values] if isinstance(values, tuple) else [None]
    if None in numbers or len(numbers) > rows or (len(numbers) < rows and not most):
        raise StorageError("The stored alternatives have a column that is no list of numbers for all plans.")
    return np.array(numbers)


@dataclass(frozen=True)
class _Fields:
    """The fields of the plan of a row."""

    plans: tuple[Plan, ...]

    def __call__(self, settings: dict[str, Any]) -> dict[str, Any]:
        plan = self.plans[settings[_ROW]]
        return {name: getattr(plan, name) for name in plan_fields(plan.library)}


def _space(plans: tuple[Plan, ...], job: Job, cluster: Cluster) -> Space:
    return Space(
        library=plans[0].library,
        layout=layout_of(plans, job, cluster),
        columns={_ROW: np.arange(len(plans))},
        shared={},
        finish=_Fields(plans),
    )
