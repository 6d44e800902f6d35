"""A question: the request that is searched on each cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.guidance.library_candidates import Request
    from smp_advisor.search import Objective

__all__ = ["Question"]


@dataclass(frozen=True, kw_only=True)
class Question:
    """A request, its library and its objective."""

    request: Request
    """Model, job and fixed settings, on one of the clusters."""
    library: str
    """Name of a library, or ``auto``."""
    objective: Objective = "throughput"
    """Rank of the plans of one cluster."""

    def on(self, cluster: Cluster) -> Question:
        """The question for a cluster."""
        return self.having(cluster=cluster)

    def having(self, **changes: Any) -> Question:
        """The question with changed fields of its request."""
        return replace(self, request=replace(self.request, **changes))

    def training(self, **changes: Any) -> Question:
        """The question with changed fields of its job."""
        return self.having(job=replace(self.request.job, **changes))
