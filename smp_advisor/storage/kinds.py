"""The kinds of values that can be stored, and where their classes are."""

from __future__ import annotations

from dataclasses import MISSING, fields
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from smp_advisor.libraries.library import libraries

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PLAN", "PUBLIC", "advise_function", "field_names", "kind_of", "kinds", "required_fields"]

PLAN = "Plan"
"""The kind of all plans. The field ``library`` decides the class."""

PUBLIC = ("Advice", "Cluster", "Estimate", "Job", "Model", PLAN)
"""Kinds that a file may hold by themselves."""

_HOMES = {
    "advice": ("Advice",),
    "cluster.cluster": ("Cluster",),
    "cluster.instance": ("Instance",),
    "costs.effective_time": ("EffectiveTime",),
    "costs.estimate": ("Estimate", "Memory", "StageMemory", "StepTime"),
    "guidance.step": ("Difference", "Pitfall", "Reference", "Step"),
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
    "workload.block": ("Attention", "Block", "Matmul", "SavedActivations"),
    "workload.calibration": ("Calibration", "Conditions", "MeasuredRun"),
    "workload.job": ("Job",),
    "workload.kernels": ("Kernels",),
    "workload.model": ("BlockGroup", "Head", "Model", "Shape"),
    "workload.overheads": ("Overheads",),
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
    function: Callable[..., Any] = import_module("smp_advisor.recommendation").advise
    return function
