"""Mismatches of SMP v1 plans with TensorFlow and clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.plan import Plan

__all__ = ["cluster_mismatches"]


def cluster_mismatches(plan: Plan, cluster: Cluster, replicas: int) -> Iterator[str]:
    """Yield mismatches of a plan with a cluster that has `replicas` of the model."""
    if not plan.ddp and replicas > 1:
        yield (
            f"horovod is off, but the cluster's {cluster.gpus} GPUs hold {replicas} replicas of the model: set horovod"
            " to True."
        )
