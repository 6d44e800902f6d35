"""Values as JSON and back, by the types of their fields: pydantic reads and writes them, when first used."""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

import numpy as np

from smp_advisor.advice.recommendation import Recommendation
from smp_advisor.cluster.cluster import Cluster
from smp_advisor.costs.estimate import Estimate
from smp_advisor.errors import StorageError
from smp_advisor.libraries.layout import layout_of
from smp_advisor.libraries.library import libraries, plan_fields
from smp_advisor.libraries.plan import Plan
from smp_advisor.libraries.space import Space
from smp_advisor.search.rank import Objective, Scores
from smp_advisor.search.search import SearchResult
from smp_advisor.workload import Job, Model

if TYPE_CHECKING:
    from pydantic import TypeAdapter

KINDS: Mapping[str, type] = {
    "Advice": Recommendation,
    "Cluster": Cluster,
    "Estimate": Estimate,
    "Job": Job,
    "Model": Model,
    "Plan": Plan,
}
"""Types that a file may hold, by the word in it."""


def kind_of(value: object) -> str:
    """Return the word for a value that a file may hold; empty for any other value."""
    return next((kind for kind, home in KINDS.items() if isinstance(value, home)), "")


def plain(value: Any) -> Any:
    """Return a value as dictionaries, lists, texts, numbers, booleans and None."""
    kind = kind_of(value)
    if not kind:
        raise StorageError(
            f"A {type(value).__name__} cannot be stored: a model, job, cluster, plan, estimate or advice can."
        )
    if isinstance(value, Recommendation):
        request = value.request
        if not isinstance(request.model, str | int | float | Model):  # a profile
            request = replace(request, model=value.model)
        value = replace(value, request=request, result=Alternatives.of(value.result))  # type: ignore[arg-type]
    return json.loads(adapter(kind).dump_json([value]))[0]


def from_plain(data: Any, kind: str) -> Any:
    """Return the value of what `plain` wrote."""
    from pydantic import ValidationError

    try:
        value = adapter(kind).validate_json(json.dumps([data]))[0]
    except ValidationError as error:
        first, more = error.errors(include_url=False, include_input=False)[0], error.error_count() - 1
        place = ".".join(map(str, first["loc"][1:])) or kind
        count_note = f" (and {more} more)" if more else ""
        raise StorageError(f"The stored {kind} is not valid at {place:.80}: {first['msg']:.300}{count_note}.") from None
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise StorageError(f"The stored {kind} is not valid: {error!s:.300}") from None
    if isinstance(value, Recommendation):
        alternatives: Any = value.result
        value = replace(value, result=alternatives.restored(value.job))
    return value


@cache
def adapter(kind: str) -> TypeAdapter[list[Any]]:
    """Return the reader and writer of a kind, which are built once.

    Of a list: pydantic does not take settings for a dataclass itself.
    """
    from pydantic import ConfigDict, Discriminator, TypeAdapter

    plans = tuple(record.plan for record in libraries())
    forms = {
        "Plan": Annotated[Union[plans], Discriminator("library")],  # noqa: UP007 - of a tuple
        "SearchResult": Alternatives,
        "Description": Model | str | int | float,
    }
    form = forms["Plan"] if kind == "Plan" else KINDS[kind]
    _resolve(form, forms, set())
    return TypeAdapter(list[form], config=ConfigDict(ser_json_inf_nan="strings", extra="forbid"))  # type: ignore[valid-type]


@cache
def _names() -> dict[str, Any]:
    """Return names in annotations that their modules import for type checkers only."""
    names: dict[str, Any] = {"Mapping": Mapping}
    for home in _HOMES:
        names |= vars(import_module(f"smp_advisor.{home}"))
    return names


_HOMES = (
    "workload", "workload.job", "workload.block", "workload.calibration", "workload.model", "cluster", "cluster.table",
    "libraries.plan", "costs.estimate", "costs.effective_time", "advice.practices", "search.rank",
    "search.clusters", "search.sizes", "search.decision", "advice.request",
)  # fmt: skip


def _resolve(form: Any, forms: Mapping[str, Any], done: set[Any]) -> None:
    """Replace the names of the types of a dataclass's fields, which pydantic would not find, by the types."""
    if not (isinstance(form, type) and is_dataclass(form)):
        for part in typing.get_args(form):
            _resolve(part, forms, done)
    elif form not in done:
        done.add(form)
        names = {**_names(), **vars(import_module(form.__module__)), **forms}
        hints = typing.get_type_hints(form, localns=names, include_extras=True)
        for entry in fields(form):
            is_library_tag = issubclass(form, Plan) and entry.name == "library"
            entry.type = Literal[entry.default] if is_library_tag else hints[entry.name]
            _resolve(entry.type, forms, done)


@dataclass(frozen=True, kw_only=True)
class Alternatives:
    """The listed plans of a search as plain columns."""

    cluster: Cluster
    objective: Objective
    plans: tuple[Plan, ...]
    needed_gib: tuple[float, ...]
    margin: tuple[float, ...]
    ranked: tuple[int, ...]
    step_seconds: tuple[float, ...]
    scores: Mapping[str, tuple[float, ...]]

    @classmethod
    def of(cls, result: SearchResult) -> Alternatives:
        """Return the plans and columns of a search."""
        return cls(
            cluster=result.cluster,
            objective=result.objective,
            plans=tuple(result.space.plan(row) for row in range(len(result.space))),
            scores={name: tuple(column.tolist()) for name, column in vars(result.scores).items()},
            **{name: tuple(getattr(result, name).tolist()) for name in _COLUMNS},
        )

    def restored(self, job: Job) -> SearchResult:
        """Return the search for a job."""
        plans = self.plans
        columns = {name: np.array(getattr(self, name)) for name in _COLUMNS if name != "ranked"}
        scores = {name: np.array(column) for name, column in self.scores.items()}
        if not plans or any(plan.library != plans[0].library for plan in plans):
            raise StorageError("The stored alternatives must be plans of one library.")
        if scores.keys() != {entry.name for entry in fields(Scores)}:
            raise StorageError("The stored alternatives lack a score.")
        lengths = {len(columns["needed_gib"]), len(columns["margin"])} == {len(plans)}
        of_ranked = {len(column) for column in (*scores.values(), columns["step_seconds"])} == {len(self.ranked)}
        if not lengths or not of_ranked or not all(0 <= row < len(plans) for row in self.ranked):
            raise StorageError("The stored alternatives have a column with more or fewer rows than plans.")
        return SearchResult(
            cluster=self.cluster,
            objective=self.objective,
            space=Space(
                library=plans[0].library,
                layout=layout_of(plans, job, self.cluster),
                columns={_ROW: np.arange(len(plans))},
                shared={},
                finish=_Fields(plans),
            ),
            ranked=np.array(self.ranked, dtype=np.intp),
            scores=Scores(**scores),
            **columns,
        )


_COLUMNS = ("needed_gib", "margin", "ranked", "step_seconds")
_ROW = "row"


@dataclass(frozen=True)
class _Fields:
    plans: tuple[Plan, ...]

    def __call__(self, settings: dict[str, Any]) -> dict[str, Any]:
        plan = self.plans[settings[_ROW]]
        return {name: getattr(plan, name) for name in plan_fields(plan.library)}
