"""The kinds of values that can be stored, the types of their fields, and numbers that JSON does not have."""

from __future__ import annotations

import builtins
import collections.abc
import math
import types
import typing
from dataclasses import MISSING, fields
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from smp_advisor.libraries.library import libraries

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "ADVICE",
    "PLAN",
    "PUBLIC",
    "RESULT",
    "advise_function",
    "field_names",
    "kind_of",
    "kinds",
    "members",
    "number_of",
    "required_fields",
    "stored_number",
    "types_of",
]


_NUMBERS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def stored_number(value: float) -> float | str:
    """The form of a number in a file."""
    return value if math.isfinite(value) else f"{value}"


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
    "cluster.cluster": ("Cluster",),
    "cluster.table": ("Instance",),
    "costs.effective_time": ("EffectiveTime",),
    "costs.estimate": ("Estimate", "Memory", "StageMemory", "StepTime"),
    "guidance": ("Difference", "Pitfall", "Reference", "Step"),
    "profiling.traced_rank.result": ("CategoryMemory", "TracedRank"),
    "search": (
        "BatchChoice",
        "BatchPolicy",
        "ClusterSize",
        "ClusterSizes",
        "Decision",
        "Limits",
        "Question",
        "Request",
    ),
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
    """Class of a kind; None for an unknown one.

    Parameters
    ----------
    library
        Library of a plan.
    """
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


def advise_function() -> Callable[..., Any]:
    """The function whose calls advice stores, to be repeated."""
    function: Callable[..., Any] = import_module("smp_advisor.advice.recommendation").advise
    return function


ADVICE, RESULT = "Advice", "result"
_OWN_FORM = {RESULT, "request", "call", "traced_ranks"}
"""Fields of advice with a form of their own: the listed plans, the calls that repeat it, and traced ranks."""

_ALIASES = {
    "Checkpointing": "libraries.plan",
    "Goal": "search",
    "MemoryKind": "workload.calibration",
    "Objective": "search",
    "OptimizerName": "workload.job",
    "Plan": "libraries.plan",
    "Precision": "workload.job",
}
"""Names in annotations that only type checkers import, with their modules."""


class _Names(dict[str, Any]):
    """Names of annotations: those of their module, of the kinds, and those that only type checkers import."""

    def __missing__(self, name: str) -> Any:
        for place in (builtins, typing, collections.abc):
            if hasattr(place, name):
                return getattr(place, name)
        if name in kinds():
            return kinds()[name]
        return getattr(import_module(f"smp_advisor.{_ALIASES[name]}"), name)


@cache
def types_of(kind: type) -> dict[str, Any]:
    """Types of the fields of a kind."""
    module = vars(import_module(kind.__module__))
    names = _Names(module)
    annotations: dict[str, Any] = {}
    for parent in reversed(kind.__mro__):
        annotations |= vars(parent).get("__annotations__", {})
    fields: Any = kind.__dataclass_fields__  # type: ignore[attr-defined]
    return {
        name: Any if kind.__name__ == ADVICE and name in _OWN_FORM else _resolved(annotations[name], names)
        for name in fields
    }


def _resolved(annotation: Any, names: _Names) -> Any:
    if not isinstance(annotation, str):
        return annotation
    return eval(annotation, {"__builtins__": {}}, names)  # noqa: S307 - annotations of this package


def members(hint: Any) -> tuple[Any, ...]:
    """Members of a union; the type itself for others."""
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
