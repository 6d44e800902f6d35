"""Values as plain data for JSON and back, by the types of their fields."""

from __future__ import annotations

import collections.abc
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from smp_advisor.errors import StorageError
from smp_advisor.libraries.layout import layout_of
from smp_advisor.libraries.library import libraries, plan_fields
from smp_advisor.libraries.plan import Plan
from smp_advisor.libraries.space import Space
from smp_advisor.search.rank import Objective, Scores
from smp_advisor.search.search import SearchResult
from smp_advisor.workload.model import Model

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from smp_advisor.workload.job import Job


_NUMBERS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def number_of(data: object) -> float | bool | None:
    """The number of its form in a file; None for anything else."""
    if isinstance(data, str):
        return _NUMBERS.get(data)
    return data if isinstance(data, bool | int | float) else None


PLAN = "Plan"
"""The kind of all plans. The field ``library`` decides the class."""

PUBLIC = ("Advice", "Cluster", "Estimate", "Job", "Model", PLAN)
"""Kinds that a file may hold by themselves."""

_HOMES = {
    "advice": ("Advice",),
    "advice.request": ("Request",),
    "cluster.cluster": ("Cluster",),
    "cluster.table": ("Instance",),
    "costs.effective_time": ("EffectiveTime",),
    "costs.estimate": ("Estimate", "Memory", "StageMemory", "StepTime"),
    "guidance.practices": ("Difference", "Pitfall", "Reference", "Step"),
    "search.clusters": ("ClusterSize", "Limits"),
    "search.decision": ("BatchChoice", "Decision"),
    "search.rank": ("BatchPolicy",),
    "search.sizes": ("ClusterSizes",),
    "workload.adapter": ("Adapter",),
    "workload.block": ("Attention", "Block", "Kernels", "Matmul", "SavedActivations"),
    "workload.calibration": ("Calibration", "Conditions", "MeasuredRun"),
    "workload.job": ("Job", "Overheads"),
    "workload.model": ("BlockGroup", "Head", "Model", "Shape"),
}


@cache
def kinds() -> dict[str, type]:
    """Classes by the name of their kind, without the plans."""
    return {
        name: getattr(import_module(f"smp_advisor.{home}"), name) for home, names in _HOMES.items() for name in names
    }


def kind_of(name: str, library: object = None) -> type | None:
    """Class of a kind; None for an unknown one."""
    if name != PLAN:
        return kinds().get(name)
    return next((record.plan for record in libraries() if record.name == library), None)


@cache
def field_names(kind: type) -> tuple[str, ...]:
    """Fields of a kind."""
    entries: Any = kind
    return tuple(entry.name for entry in fields(entries))


@cache
def required_fields(kind: type) -> frozenset[str]:
    """Fields without a default."""
    entries: Any = kind
    return frozenset(e.name for e in fields(entries) if e.default is MISSING and e.default_factory is MISSING)


ADVICE, RESULT = "Advice", "result"
_OWN_FORM = {RESULT}
"""Field of advice with a form of its own: the listed plans."""


@cache
def _names() -> dict[str, Any]:
    """Names in annotations, some of which only type checkers import."""
    homes = (import_module(f"smp_advisor.{home}") for home in (*_HOMES, "libraries.plan", "search.search"))
    modules = (typing, collections.abc, *homes)
    return {name: value for module in modules for name, value in vars(module).items()}


@cache
def types_of(kind: type) -> dict[str, Any]:
    """Types of the fields of a kind."""
    hints = typing.get_type_hints(kind, localns=_names() | vars(import_module(kind.__module__)))
    own = _OWN_FORM if kind.__name__ == ADVICE else set()
    return {name: Any if name in own else hints[name] for name in field_names(kind)}


_OF_PLANS = ("needed_gib", "margin")
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


def result_from_plain(values: Any, job: Job) -> SearchResult:
    """The inverse of `result_as_plain` for restored parts."""
    from smp_advisor.cluster.cluster import Cluster

    if not isinstance(values, Mapping):
        raise StorageError("The stored alternatives are not valid.")
    cluster, plans, scores = (values.get(name) for name in ("cluster", "plans", "scores"))
    if values.keys() != _KEYS or not isinstance(plans, tuple) or not isinstance(scores, Mapping):
        raise StorageError("The stored alternatives lack a part.")
    if not plans or not all(isinstance(plan, Plan) and plan.library == plans[0].library for plan in plans):
        raise StorageError("The stored alternatives must be plans of one library.")
    objective = next((name for name in get_args(Objective) if name == values["objective"]), None)
    if not isinstance(cluster, Cluster) or objective is None:
        raise StorageError("The stored alternatives lack their cluster or objective.")
    ranked = _column(values["ranked"], len(plans), most=True)
    if not all(number in range(len(plans)) for number in ranked.tolist()):
        raise StorageError("The stored alternatives have a row without a plan.")
    if scores.keys() != {entry.name for entry in fields(Scores)}:
        raise StorageError("The stored alternatives lack a score.")
    return SearchResult(
        cluster=cluster,
        objective=objective,
        space=Space(
            library=plans[0].library,
            layout=layout_of(plans, job, cluster),
            columns={_ROW: np.arange(len(plans))},
            shared={},
            finish=_Fields(plans),
        ),
        ranked=ranked.astype(np.intp),
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
    plans: tuple[Plan, ...]

    def __call__(self, settings: dict[str, Any]) -> dict[str, Any]:
        plan = self.plans[settings[_ROW]]
        return {name: getattr(plan, name) for name in plan_fields(plan.library)}


_STORED = (str, int, float, Model)
"""Descriptions of a model that a file holds."""


TYPE = "type"
"""Key of an object with the name of its kind."""


def plain(value: Any) -> Any:
    """A value as dictionaries, lists, texts, numbers, booleans and None."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else f"{value}"
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    if isinstance(value, frozenset):
        return sorted(plain(part) for part in value)
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    kind: type = type(value)
    name = PLAN if isinstance(value, Plan) else kind.__name__
    if kind_of(name, getattr(value, "library", None)) is kind:
        fields = {field: getattr(value, field) for field in field_names(kind)}
        own: dict[str, Any] = {}
        if name == ADVICE:
            own = {RESULT: result_as_plain(fields[RESULT])}
            request = fields["request"]
            if request is not None and not isinstance(request.model, _STORED):  # a profile
                own["request"] = replace(request, model=fields["model"])
        return {TYPE: name} | {field: plain(part) for field, part in (fields | own).items()}
    raise StorageError(f"A {name} cannot be stored: a model, job, cluster, plan, estimate or advice can.")


def members(hint: Any) -> tuple[Any, ...]:
    """Members of a union; the type itself for others."""
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def from_plain(data: Any, hint: Any = Any, place: str = "") -> Any:
    """The inverse of `plain` for a value of a type."""
    if hint is Any:
        return _untyped(data, place)
    for member in members(hint):
        restored = _member(data, member, place)
        if restored is not _NOT:
            return restored
    raise StorageError(f"The stored value {place or 'at the top'} is not valid: {data!r:.60}.")


_NOT: Any = object()
"""No value of a type."""


def _member(data: Any, hint: Any, place: str) -> Any:
    """The value as one member of a union, or `_NOT`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in (bool, str):
        return data if type(data) is hint else _NOT
    if hint is int:
        return data if type(data) is int else _NOT
    if hint is float:
        number = None if isinstance(data, bool) else number_of(data)
        return _NOT if number is None else number
    if hint in (None, types.NoneType):
        return None if data is None else _NOT
    if origin is Literal:
        return next((value for value in arguments if value == data and type(value) is type(data)), _NOT)
    if origin is tuple:
        return _entries(data, arguments, place)
    if origin is frozenset:
        return frozenset(_entries(data, (*arguments, ...), place)) if isinstance(data, list) else _NOT
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _table(data, place) if isinstance(data, dict) and TYPE not in data else _NOT
    if isinstance(data, dict) and data.get(TYPE) in (hint.__name__, PLAN):
        value = _object(data, place)
        return value if isinstance(value, hint) else _NOT
    return _NOT


def _entries(data: Any, arguments: tuple[Any, ...], place: str) -> Any:
    if not isinstance(data, list):
        return _NOT
    hints = arguments if arguments[-1] is not ... else (arguments[0],) * len(data)
    if len(hints) != len(data):
        return _NOT
    return tuple(
        from_plain(part, hint, f"{place}[{index}]") for index, (part, hint) in enumerate(zip(data, hints, strict=True))
    )


def _table(data: dict[str, Any], place: str) -> dict[str, Any]:
    return {name: _untyped(part, f"{place}.{name}") for name, part in data.items()}


def _untyped(data: Any, place: str) -> Any:
    """A value without a declared type, as its data shows it."""
    if isinstance(data, list):
        return tuple(_untyped(part, f"{place}[{index}]") for index, part in enumerate(data))
    if not isinstance(data, dict):
        return data
    return _object(data, place) if TYPE in data else _table(data, place)


def _object(data: dict[str, Any], place: str) -> Any:
    name = data[TYPE]
    values = {key: part for key, part in data.items() if key != TYPE}
    kind = kind_of(name, data.get("library")) if isinstance(name, str) else None
    if kind is None:
        raise StorageError(f"The stored value {place or 'at the top'} has the unknown type {name!r:.60}.")
    hints = types_of(kind)
    unknown, missing = values.keys() - hints.keys(), required_fields(kind) - values.keys()
    if unknown or missing:
        problem = "has the unknown field" if unknown else "lacks the field"
        raise StorageError(f"The stored {name} {place} {problem} {min(unknown or missing)!r:.60}.")
    fields = {key: from_plain(part, hints[key], f"{place}.{key}".lstrip(".")) for key, part in values.items()}
    try:
        if name == ADVICE:
            fields[RESULT] = result_from_plain(fields[RESULT], fields["job"])
        return kind(**fields)
    except StorageError:
        raise
    except (ValueError, TypeError, ArithmeticError) as error:
        raise StorageError(f"The stored {name} {place} is not valid: {error}") from None
