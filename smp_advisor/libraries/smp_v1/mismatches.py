"""Mismatches of SMP v1 plans with clusters and models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.libraries.groups import nearest_divisor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["cluster_mismatches", "model_mismatches"]


def cluster_mismatches(plan: Plan, cluster: Cluster, replicas: int) -> Iterator[str]:
    """Yield mismatches of a plan with a cluster that has `replicas` of the model."""
    if not plan.ddp and replicas > 1:
        yield (
            f"ddp is off, but the cluster's {cluster.gpus} GPUs hold {replicas} replicas of the model: set ddp to True."
        )
    shards = plan.sharded_data_parallel_degree
    if replicas % shards:
        # Ranks of a tensor-parallel group have different slices, so only replicas share shards.
        divided = "data-parallel degree" if plan.tensor_parallel_degree == 1 else "reduced data-parallel degree"
        yield (
            f"sharded_data_parallel_degree ({shards}) must divide the {divided}, which is {replicas} on {cluster.gpus}"
            f" GPUs: set it to {nearest_divisor(replicas, shards)}."
        )


def model_mismatches(plan: Plan, model: Model, job: Job | None) -> Iterator[str]:
    """Yield mismatches of a plan with a model and its sequences."""
    degree = plan.tensor_parallel_degree
    if job is not None and plan.prescaled_batch:
        length = model.sequence_length(job.sequence_length)
        if length % degree:
            yield (
                f"With prescaled_batch the sequence length ({length}) must be a multiple of tensor_parallel_degree"
                f" ({degree}): use {length // degree * degree or degree} tokens, or turn prescaled_batch off."
            )
