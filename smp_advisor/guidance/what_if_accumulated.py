"""What has to move with a changed setting in libraries that accumulate batches: all but SMP v1 with PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.guidance.wording import plural
from smp_advisor.libraries.plan import plan_fields
from smp_advisor.libraries.smp_v2.mismatches import SMDDP_INSTANCES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.guidance.case import Case
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job

__all__ = ["accumulated_settings"]


def accumulated_settings(
    case: Case, place: Cluster, job: Job, changes: Mapping[str, Any], *, hold_global_batch: bool
) -> tuple[dict[str, Any], tuple[str, ...]] | str:
    """Settings of the plan with some changed and others moved where they must, and what moved; or why it can't be.

    Parameters
    ----------
    hold_global_batch
        Whether the global batch stays: each replica then takes its new share of it, in as many accumulated batches as
        before where that divides it.
    """
    now, settings = case.plan, dict(changes)
    moved: list[str] = []

    def get(name: str) -> Any:
        return settings.get(name, getattr(now, name))

    stages = get("partitions") if now.library == "smp-v1-tensorflow" else 1
    together = get("tensor_parallel_degree") * get("context_parallel_degree") * stages
    if place.gpus % together:
        return f"{place.gpus} GPUs cannot be divided by groups of {together} that work on a batch together."
    replicas = place.gpus // together
    if hold_global_batch and "batch_size" not in changes:
        total = case.estimate.global_batch_size
        share, rest = divmod(total, replicas)
        if rest or not share:
            if job.global_batch_size is not None:
                return f"The global batch of {total:,} samples cannot be divided by {replicas} replicas."
            share = max(1, round(total / replicas))
            moved.append(f"a global batch of {share * replicas:,} samples instead of {total:,}")
        _split(now, share, settings, moved)
    if "microbatches" in plan_fields(now.library) and get("batch_size") % get("microbatches"):
        fewer = max(m for m in range(1, get("microbatches")) if get("batch_size") % m == 0)
        moved.append(f"{plural(fewer, 'microbatch', 'microbatches')} instead of {get('microbatches')}")
        settings["microbatches"] = fewer
    if now.library == "smp-v1-tensorflow":
        settings["horovod"] = replicas > 1
    if now.library == "smp-v2":
        _fit_shards(now, place, settings, moved, get)
    return settings, tuple(moved)


def _split(now: Plan, share: int, settings: dict[str, Any], moved: list[str]) -> None:
    """Divide a replica's share of the global batch into accumulated batches."""
    if "gradient_accumulation_steps" not in plan_fields(now.library):
        settings["batch_size"] = share
        return
    steps = settings.get("gradient_accumulation_steps", now.gradient_accumulation_steps)
    if share % steps:
        fewer = max(k for k in range(1, steps) if share % k == 0)
        moved.append(f"{plural(fewer, 'accumulated batch', 'accumulated batches')} instead of {steps}")
        steps = settings["gradient_accumulation_steps"] = fewer
    settings["batch_size"] = share // steps


def _fit_shards(now: Plan, place: Cluster, settings: dict[str, Any], moved: list[str], get: Any) -> None:
    """Make shards divide the GPUs that tensor and expert parallelism leave, and what offloading needs follow."""
    left = max(place.gpus // (get("tensor_parallel_degree") * get("expert_parallel_degree")), 1)
    shards = get("hybrid_shard_degree")
    if shards and left % shards:
        fewer = max(d for d in range(1, shards) if left % d == 0)
        settings["hybrid_shard_degree"] = shards = fewer
        moved.append(f"{plural(fewer, 'shard')} instead of {now.hybrid_shard_degree}")
    if not get("activation_checkpointing") and get("offload_activations"):
        settings["offload_activations"] = False
        moved.append("offloading off, which needs checkpointing")
    if "offload_activations" in settings:
        settings["sm_activation_offloading"] = None
    if now.distributed_backend == "smddp" and (place.instance.name not in SMDDP_INSTANCES or shards == 1):
        settings["distributed_backend"] = "nccl"
