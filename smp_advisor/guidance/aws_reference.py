"""AWS's reference configurations, read from their data file."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from smp_advisor.cluster import Cluster
from smp_advisor.libraries.plan import Plan
from smp_advisor.workload.job import Job
from smp_advisor.workload.model import Model

__all__ = ["ReferenceRow", "largest_tested_ratio", "reference_rows", "tested_extrapolation"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReferenceRow:
    """One configuration that AWS ran."""

    name: str
    """By size: ``10 B``."""
    model: Model
    cluster: Cluster
    job: Job
    plan: Plan
    assumed: tuple[str, ...]
    """What AWS does not publish and was filled in, one sentence each."""
    source_title: str
    source_url: str
    date: str
    """State of the page (ISO 8601)."""


@cache
def _file() -> dict[str, Any]:
    text = (files("smp_advisor.guidance") / "data" / "aws_reference.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def reference_rows() -> tuple[ReferenceRow, ...]:
    """The three rows of the best-practices page, smallest first.

    Examples
    --------
    >>> [row.plan.tensor_parallel_degree for row in reference_rows()]
    [4, 8, 8]
    """
    return tuple(_row(entry) for entry in _file()["row"])


def _row(entry: dict[str, Any]) -> ReferenceRow:
    page = _file()
    shared = dict(page["shared"])
    assumed = list(shared.pop("assumed"))
    if entry["shape_assumed"]:
        assumed.insert(0, f"The shape of the {entry['name']} model is not published; {entry['shape_source']}.")
    return ReferenceRow(
        name=entry["name"],
        model=Model.from_shape(
            layers=entry["layers"],
            hidden=entry["hidden"],
            heads=entry["heads"],
            vocab=page["vocab"],
            family=page["family"],
            max_positions=page["sequence_length"],
            name=f"GPT-2 {entry['name']} (AWS reference)",
        ),
        cluster=Cluster(page["instance"], entry["nodes"]),
        job=Job(sequence_length=page["sequence_length"], precision="fp16"),
        plan=Plan(**shared, **entry["plan"]),
        assumed=tuple(assumed),
        source_title=page["title"],
        source_url=page["url"],
        date=page["date"],
    )


def tested_extrapolation() -> str:
    """How AWS extrapolates from its rows, as a clause."""
    return str(_file()["extrapolation"]["tested"])


def largest_tested_ratio() -> float:
    """Largest ratio of parameter counts that the page extrapolates over."""
    return float(_file()["extrapolation"]["largest_parameter_ratio"])
