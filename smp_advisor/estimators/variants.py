"""A plan with one technique added or removed, if the library allows it on the cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from smp_advisor.costs import estimate_many
from smp_advisor.errors import AdvisorError
from smp_advisor.libraries import mismatches
from smp_advisor.libraries.plan_fields import plan_fields
from smp_advisor.libraries.registry import get_library

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["Variant", "estimated", "larger", "without"]


@dataclass(frozen=True, slots=True)
class Variant:
    """One change to a plan."""

    technique: str
    """Name of the technique."""
    saying: str
    """The change in words: "activation_checkpointing='each'"."""
    plan: Plan


def _made(plan: Plan, cluster: Cluster, technique: str, **changes: Any) -> Iterator[Variant]:
    names = plan_fields(plan.library)
    if not changes.keys() <= names or all(getattr(plan, name) == value for name, value in changes.items()):
        return
    try:
        changed = replace(plan, **changes)
        if any(True for _ in mismatches(changed, cluster)):
            return
    except AdvisorError:
        return
    saying = " and ".join(f"{name}={value!r}" for name, value in changes.items())
    yield Variant(technique, saying, changed)


def larger(plan: Plan, cluster: Cluster) -> Iterator[Variant]:
    """Changes that save memory, the smallest first."""
    yield from _made(plan, cluster, "checkpointing", activation_checkpointing="each")
    if not plan.shard_optimizer_state and plan.sharded_data_parallel_degree == 1:
        yield from _made(plan, cluster, "optimizer state sharding", shard_optimizer_state=True)
    for divided in (2, 4, 8):
        if plan.batch_size % divided == 0 and (plan.batch_size // divided) % plan.microbatches == 0:
            yield from _made(plan, cluster, "a smaller batch", batch_size=plan.batch_size // divided)
    for factor in (2, 4, 8, 16, 32):
        if plan.hybrid_shard_degree > 0:
            yield from _made(plan, cluster, "more shards", hybrid_shard_degree=plan.hybrid_shard_degree * factor)
        if plan.sharded_data_parallel_degree > 1:
            degree = plan.sharded_data_parallel_degree * factor
            yield from _made(plan, cluster, "more shards", sharded_data_parallel_degree=degree)
    for factor in (2, 4, 8):
        degree = plan.tensor_parallel_degree * factor
        if degree <= cluster.gpus_per_node:
            yield from _made(plan, cluster, "tensor parallelism", tensor_parallel_degree=degree)
    yield from _made(plan, cluster, "offloading", activation_checkpointing="each", offload_activations=True)
    for factor in (2, 4, 8):
        degree = plan.pipeline_parallel_degree * factor
        yield from _made(plan, cluster, "pipeline parallelism", **{plan.PIPELINE_FIELD: degree})


def without(plan: Plan, cluster: Cluster) -> Iterator[Variant]:
    """The plan without one of its techniques, for each of them."""
    record = get_library(plan.library)
    if not record.smdistributed or record.framework != "pytorch":
        return
    if plan.offload_activations:
        yield from _made(plan, cluster, "offload_activations", offload_activations=False)
    elif plan.activation_checkpointing:
        yield from _made(plan, cluster, "activation_checkpointing", activation_checkpointing=False)
    if plan.shard_optimizer_state:
        yield from _made(plan, cluster, "shard_optimizer_state", shard_optimizer_state=False)
    if plan.pipeline_parallel_degree > 1:
        yield from _without_pipeline(plan, cluster)
    if plan.tensor_parallel_degree > 1:
        yield from _without_tensor(plan, cluster)
    if plan.context_parallel_degree > 1:
        yield from _made(plan, cluster, "context_parallel_degree", context_parallel_degree=1)


def _without_pipeline(plan: Plan, cluster: Cluster) -> Iterator[Variant]:
    yield from _made(
        plan,
        cluster,
        "pipeline_parallel_degree",
        pipeline_parallel_degree=1,
        pipeline="interleaved",
        active_microbatches=None,
        microbatches=1,
    )


def _without_tensor(plan: Plan, cluster: Cluster) -> Iterator[Variant]:
    """The plan without tensor parallelism, with the same batch per group."""
    changes: dict[str, Any] = {"tensor_parallel_degree": 1}
    if plan.prescaled_batch:
        share, remainder = divmod(plan.batch_size, plan.tensor_parallel_degree)
        if remainder or not share or share % plan.microbatches:
            return
        changes |= {"prescaled_batch": False, "batch_size": share}
    yield from _made(plan, cluster, "tensor_parallel_degree", **changes)


def estimated(model: Model, cluster: Cluster, job: Job, variants: list[Variant]) -> list[tuple[Variant, Estimate]]:
    """Each variant that suits the model and the job, with its estimate."""
    variants = [variant for variant in variants if not any(True for _ in mismatches(variant.plan, cluster, model, job))]
    if not variants:
        return []
    estimates = estimate_many(model, cluster, job, [variant.plan for variant in variants])
    return list(zip(variants, estimates, strict=True))
