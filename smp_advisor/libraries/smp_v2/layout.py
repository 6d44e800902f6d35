"""Layouts of SMP v2 plans for the cost model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.elementwise import inverted, where
from smp_advisor.libraries.columns import BACKENDS
from smp_advisor.libraries.fsdp.layout import prefetched_units
from smp_advisor.libraries.layout import EVERYTHING, Layout, checkpoint_columns
from smp_advisor.libraries.schema import default_of
from smp_advisor.libraries.state_bytes import fully_sharded, trained

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.columns import PlanColumns
    from smp_advisor.workload.job import Job

__all__ = ["layout"]


def layout(plans: PlanColumns, job: Job, cluster: Cluster | None = None) -> Layout:
    """Columns of the cost model for columns of plans.

    Shards are fp32, gathered blocks 16-bit, and a tensor- and context-parallel group shares one batch. Accumulated
    batches run one after the other, so that one batch of activations exists at a time. Tensor parallelism is assumed to
    be sequence-parallel: AWS's released recipes for Llama 3.1 8B (tensor degree 2, 16,384 tokens, no checkpointing, P5)
    fit only this way.
    """
    tensor, experts, shards = (
        plans[name] for name in ("tensor_parallel_degree", "expert_parallel_degree", "hybrid_shard_degree")
    )
    if cluster is not None:
        shards = where(shards == 0, cluster.gpus // (tensor * experts), shards)
    horizon = plans["activation_loading_horizon"]
    return Layout.of_columns(
        trained(fully_sharded(job), job),
        rows=plans.rows,
        tensor_parallel_degree=tensor,
        sequence_parallel=tensor > 1,
        context_parallel_degree=plans["context_parallel_degree"],
        expert_parallel_degree=experts,
        experts_beside_shards=True,
        shard_level=3,
        shard_degree=shards,
        prefetched_units=prefetched_units(plans),
        max_live_parameters=EVERYTHING,
        batch_samples=plans["batch_size"] * plans["gradient_accumulation_steps"],
        microbatches=plans["gradient_accumulation_steps"],
        **checkpoint_columns(plans["activation_checkpointing"]),
        offload_activations=plans["offload_activations"],
        offload_running=True,
        blocking_offload=plans["offload_activations"] & inverted(plans["sm_activation_offloading"]),
        overlapped_gather=plans["distributed_backend"] == BACKENDS.index("smddp"),
        activation_loading_horizon=where(horizon == 0, default_of("activation_loading_horizon", "smp-v2"), horizon),
    )
