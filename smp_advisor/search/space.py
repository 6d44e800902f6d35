"""Every plan a library can express on a cluster, as columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smp_advisor.costs.layout import COLUMNS, Layout
from smp_advisor.library.plan import Plan
from smp_advisor.library.version import require_library

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["Space", "enumerate_plans"]


@dataclass(frozen=True, kw_only=True)
class Space:
    """n plans as a `Layout`, and what it takes to make a `Plan` of a row."""

    library: str
    layout: Layout
    settings: Callable[[Mapping[str, Any]], dict[str, Any]]
    """Fields of the plan of a row, of the row's columns."""
    extra: Mapping[str, Any]
    """Pinned fields that no column holds."""

    def __len__(self) -> int:
        return len(self.layout)

    def plan(self, row: int) -> Plan:
        """The plan of one row."""
        at = {name: getattr(self.layout, name)[row].item() for name in COLUMNS}
        return Plan(**{"library": self.library, **self.settings(at), **self.extra})


def enumerate_plans(
    model: Model, cluster: Cluster, job: Job, pins: Mapping[str, Any] | None = None, *, library: str = "smp-v1"
) -> Space:
    """All plans of a library on the cluster, none left out for being unpromising.

    Parameters
    ----------
    pins
        Plan fields held at a value.
    library
        Whose plans.
    """
    from smp_advisor.search.data_parallel_space import enumerate_data_parallel
    from smp_advisor.search.smp_v1_space import enumerate_smp_v1
    from smp_advisor.search.smp_v2_space import enumerate_smp_v2
    from smp_advisor.search.tensorflow_space import enumerate_tensorflow

    require_library(library)
    held = dict(pins or {})
    match library:
        case "smp-v1":
            return enumerate_smp_v1(model, cluster, job, held)
        case "smp-v1-tensorflow":
            return enumerate_tensorflow(model, cluster, job, held)
        case "smp-v2":
            return enumerate_smp_v2(model, cluster, job, held)
        case _:
            return enumerate_data_parallel(model, cluster, job, held, library=library)
