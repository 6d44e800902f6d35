"""A library's plans in the neutral form of the cost model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.costs.layout import Layout, checkpoint_layers, sharded_default
from smp_advisor.costs.recipe import smp_v1
from smp_advisor.costs.translation_replicated import replicated, smp_v1_tensorflow
from smp_advisor.costs.translation_sharded import fsdp, smp_v2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.library.plan import Plan
    from smp_advisor.workload.job import Job

__all__ = ["layout_of"]


def layout_of(plans: Sequence[Plan], job: Job, cluster: Cluster | None = None) -> Layout:
    """Columns of some plans, all of one library.

    Parameters
    ----------
    cluster
        Where the plans run: what sharding that follows the nodes needs to know (FSDP's hybrid strategies).
    """
    libraries = {plan.library for plan in plans}
    if len(libraries) > 1:
        raise ValueError(f"plans of different libraries do not go into one layout: {', '.join(sorted(libraries))}")
    match libraries.pop() if libraries else "smp-v1":
        case "smp-v2":
            return smp_v2(plans, job, cluster)
        case "fsdp":
            return fsdp(plans, job, cluster)
        case "ddp" | "training-compiler":
            return replicated(plans, job)
        case "smp-v1-tensorflow":
            return smp_v1_tensorflow(plans, job)
        case _:
            return _smp_v1(plans, job)


def _smp_v1(plans: Sequence[Plan], job: Job) -> Layout:
    return Layout.of_columns(
        smp_v1(job),
        rows=len(plans),
        tensor_parallel_degree=[p.tensor_parallel_degree for p in plans],
        pipeline_parallel_degree=[p.pipeline_parallel_degree for p in plans],
        shard_level=[3 if p.sharded_data_parallel_degree > 1 else int(p.shard_optimizer_state) for p in plans],
        shard_degree=[p.sharded_data_parallel_degree if p.sharded_data_parallel_degree > 1 else 0 for p in plans],
        # Unscaled, every rank of a tensor-parallel group brings a batch and the group processes them together.
        batch_samples=[p.batch_size * (1 if p.prescaled_batch else p.tensor_parallel_degree) for p in plans],
        microbatches=[p.microbatches for p in plans],
        active_microbatches=[
            p.active_microbatches or min(p.pipeline_parallel_degree + 2, p.microbatches)
            if p.pipeline != "simple"
            else p.microbatches
            for p in plans
        ],
        simple_pipeline=[p.pipeline == "simple" for p in plans],
        checkpoint_layers=[checkpoint_layers(p.activation_checkpointing) for p in plans],
        offload_activations=[p.offload_activations for p in plans],
        activation_loading_horizon=[p.activation_loading_horizon or 4 for p in plans],
        split_checkpoints=[p.optimize == "memory" and p.tensor_parallel_degree > 1 for p in plans],
        max_live_parameters=[p.sdp_max_live_parameters or sharded_default("max_live_parameters") for p in plans],
        reduce_bucket_elements=[p.sdp_reduce_bucket_size or sharded_default("reduce_bucket_elements") for p in plans],
        host_handover=True,
        gather_after_step=True,
        spread_placement=[p.placement_strategy == "spread" for p in plans],
    )
