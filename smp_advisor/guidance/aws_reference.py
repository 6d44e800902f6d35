"""AWS's reference configurations, from the data files of the libraries."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from smp_advisor.cluster import Cluster
from smp_advisor.libraries.library import DEFAULT_LIBRARY, get_library
from smp_advisor.libraries.plan import Plan
from smp_advisor.workload.job import Job
from smp_advisor.workload.model import Model

__all__ = ["ReferenceRow", "reference_rows"]

_FILE = "aws_reference.toml"


@dataclass(frozen=True, kw_only=True, slots=True)
class ReferenceRow:
    """One configuration that AWS ran."""

    name: str
    """By size: ``10 B``."""
    model_name: str
    """Published name of the model: ``GPT-2``."""
    model: Model
    cluster: Cluster
    job: Job
    plan: Plan
    assumed: tuple[str, ...]
    """Values that AWS does not publish and that are assumed here, one sentence each."""
    compared: tuple[str, ...]
    """Settings in which a recommendation is compared with the row, in order."""
    procedure: str
    """AWS's procedure of extrapolation from its rows, as a sentence; empty if it describes none."""
    largest_parameter_ratio: float
    """Largest ratio of parameter counts over which AWS extrapolates; 0 without a procedure."""
    source_title: str
    source_url: str
    date: str
    """State of the page (ISO 8601)."""


@cache
def reference_rows(library: str = DEFAULT_LIBRARY) -> tuple[ReferenceRow, ...]:
    """The rows of a library's best-practices page, smallest first; empty for libraries without published rows.

    Examples
    --------
    >>> [row.plan.tensor_parallel_degree for row in reference_rows()]
    [4, 8, 8]
    """
    record = get_library(library)
    if not (files(record.package) / _FILE).is_file():
        return ()
    page = record.table(_FILE)
    return tuple(_row(library, page, entry) for entry in page["row"])


def _row(library: str, page: dict[str, Any], entry: dict[str, Any]) -> ReferenceRow:
    job = Job(**page["job"])
    extrapolation = page.get("extrapolation", {})
    return ReferenceRow(
        name=entry["name"],
        model_name=page["model"],
        model=Model.from_shape(
            **entry["shape"],
            vocab=page["vocab"],
            family=page["family"],
            max_positions=job.sequence_length,
            name=f"{page['model']} {entry['name']} (AWS reference)",
        ),
        cluster=Cluster(page["instance"], entry["nodes"]),
        job=job,
        plan=Plan(library=library, **page["plan"], **entry["plan"]),
        assumed=tuple(filter(None, (entry["shape_assumed"], *page["assumed"]))),
        compared=tuple(page["compared"]),
        procedure=extrapolation.get("procedure", ""),
        largest_parameter_ratio=extrapolation.get("largest_parameter_ratio", 0.0),
        source_title=page["title"],
        source_url=page["url"],
        date=page["date"],
    )
