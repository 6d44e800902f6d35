"""Mismatches of SMP v2 plans with clusters and models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.libraries.families import supported_families
from smp_advisor.libraries.groups import nearest_divisor, shard_degree
from smp_advisor.libraries.library import table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["SMDDP_INSTANCES", "cluster_mismatches", "model_mismatches"]

_TECHNIQUES = {
    "tensor_parallel": "tensor_parallel_degree",
    "context_parallel": "context_parallel_degree",
    "expert_parallel": "expert_parallel_degree",
}

SMDDP_INSTANCES: tuple[str, ...] = tuple(table("smp_advisor.libraries.smp_v2", "versions.toml")["instances"]["smddp"])
"""Instances with SageMaker's own collectives."""


def cluster_mismatches(plan: Plan, cluster: Cluster, _: int) -> Iterator[str]:
    """Yield mismatches of a plan with a cluster.

    World = shards x tensor degree x expert degree x replicas. Context-parallel ranks are part of the shards
    (sagemaker-hyperpod-training-adapter-for-nemo, checks of its configuration).
    """
    taken = plan.tensor_parallel_degree * plan.expert_parallel_degree
    if cluster.gpus % taken:
        yield (
            f"tensor_parallel_degree x expert_parallel_degree ({plan.tensor_parallel_degree} x"
            f" {plan.expert_parallel_degree}) must divide the cluster's {cluster.gpus} GPUs: set expert_parallel_degree"
            f" to {nearest_divisor(cluster.gpus // plan.tensor_parallel_degree, plan.expert_parallel_degree)}."
        )
        return
    left, shards = cluster.gpus // taken, shard_degree(plan, cluster)
    if left % shards:
        yield (
            f"hybrid_shard_degree ({shards}) must divide the {left} GPUs that tensor_parallel_degree x"
            f" expert_parallel_degree leaves of {cluster.gpus}: set it to {nearest_divisor(left, shards)}."
        )
    if plan.context_parallel_degree > shards:
        yield (
            f"context_parallel_degree ({plan.context_parallel_degree}) cannot exceed the shard degree, which is"
            f" {shards} on {cluster.gpus} GPUs: set it to {shards} or less."
        )
    if plan.distributed_backend == "smddp" and cluster.instance.name not in SMDDP_INSTANCES:
        yield (
            f"SageMaker's own collectives (smddp) run on {' and '.join(SMDDP_INSTANCES)} only, not on"
            f" {cluster.instance.name}: set distributed_backend to 'nccl'."
        )
    if plan.fp8 and not cluster.instance.fp8_tflops:
        yield (
            f"{cluster.instance.name} ({cluster.instance.gpu_label}) does not compute in fp8: turn fp8 off, or use"
            " ml.p5.48xlarge."
        )


def model_mismatches(plan: Plan, model: Model, job: Job | None) -> Iterator[str]:
    """Yield mismatches of a plan with a model and its sequences."""
    adapter = job is not None and job.adapter is not None
    for technique, key in _TECHNIQUES.items():
        families = supported_families(technique, "smp-v2", adapter=adapter)
        if getattr(plan, key) > 1 and model.family not in families:
            title = technique.replace("_", " ").replace("parallel", "parallelism")
            yield (
                f"SMP v2 has {title} for the families {', '.join(families)} only, not for {model.family}: set {key} to"
                " 1."
                if families
                else f"SMP v2 has no {title} with an adapter, which trains the model of transformers"
                f" (use_smp_model=False): set {key} to 1."
            )
    if plan.fp8 and adapter:
        yield "SMP v2 runs no fp8 with an adapter, which trains the model of transformers: turn fp8 off."
    elif plan.fp8 and model.family not in supported_families("fp8", "smp-v2"):
        yield (
            f"SMP v2 runs fp8 with the families {', '.join(supported_families('fp8', 'smp-v2'))}, not with"
            f" {model.family}: turn fp8 off."
        )
    experts = model.shape.experts
    if plan.expert_parallel_degree > 1 and experts % plan.expert_parallel_degree:
        yield (
            f"expert_parallel_degree ({plan.expert_parallel_degree}) must divide the model's {experts} experts: set it"
            f" to {nearest_divisor(experts, plan.expert_parallel_degree)}."
        )
    if job is not None and plan.context_parallel_degree > 1:
        length = model.sequence_length(job.sequence_length)
        if length % plan.context_parallel_degree:
            yield (
                f"context_parallel_degree ({plan.context_parallel_degree}) must divide the sequence length ({length}):"
                f" set it to {nearest_divisor(length, plan.context_parallel_degree)}."
            )
