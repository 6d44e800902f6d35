"""The run that guidance explains: a plan for a model on a cluster, with its estimate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smp_advisor.wording import fits

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["PlannedRun"]


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A plan for a model on a cluster, with its estimate."""

    model: Model
    cluster: Cluster
    job: Job
    plan: Plan
    estimate: Estimate
    min_fit_probability: float
    """Required probability of fitting."""
    objective: str = "throughput"
    pins: frozenset[str] = frozenset()
    """Fields of the plan that the user fixed."""

    @property
    def fits(self) -> bool:
        """Whether the plan fits with the required probability."""
        return fits(self.estimate, self.min_fit_probability)

    @property
    def sequence_length(self) -> int:
        """Tokens per sample of the model in this job."""
        return self.model.sequence_length(self.job.sequence_length)

    @property
    def data_parallel_degree(self) -> int:
        """Ranks of a data-parallel group: world / pipeline degree."""
        return self.cluster.gpus // self.plan.pipeline_parallel_degree

    @property
    def replicas(self) -> int:
        """Groups of GPUs that process different samples (reduced data-parallel degree)."""
        return self.data_parallel_degree // (self.plan.tensor_parallel_degree * self.plan.context_parallel_degree)
