"""Plans of PyTorch FSDP, plain or with SMP v2, in the neutral form of the cost model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.costs.layout import Layout, checkpoint_layers
from smp_advisor.costs.recipe import fully_sharded, over_frozen
from smp_advisor.library.world import shard_degree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.library.plan import Plan
    from smp_advisor.workload.job import Job

__all__ = ["LOADING_HORIZON", "PREFETCHED_UNITS", "fsdp", "smp_v2"]

PREFETCHED_UNITS = 2
"""Blocks FSDP holds gathered: the one that runs and the next (``limit_all_gathers``, backward prefetch)."""

LOADING_HORIZON = 2
"""Default of SMP v2's ``activation_loading_horizon``."""

_EVERYTHING = 2**62
"""More parameters than any model: strategies that keep gathered parameters until the backward pass hold them all."""


def smp_v2(plans: Sequence[Plan], job: Job, cluster: Cluster | None) -> Layout:
    """SMP v2: fp32 shards, 16-bit gathered blocks, one batch a tensor- and context-parallel group.

    Accumulated batches run one after the other, so activations are those of one. Tensor parallelism is taken to be
    sequence-parallel: AWS's released recipes for Llama 3.1 8B (tensor degree 2, 16,384 tokens, no checkpointing, P5)
    fit only so.
    """
    keeps = [p.sharding_strategy == "_hybrid_shard_zero2" for p in plans]
    return Layout.of_columns(
        over_frozen(fully_sharded(job), job),
        rows=len(plans),
        tensor_parallel_degree=[p.tensor_parallel_degree for p in plans],
        sequence_parallel=[p.tensor_parallel_degree > 1 for p in plans],
        context_parallel_degree=[p.context_parallel_degree for p in plans],
        expert_parallel_degree=[p.expert_parallel_degree for p in plans],
        experts_beside_shards=True,
        shard_level=3,
        shard_degree=[p.hybrid_shard_degree if cluster is None else shard_degree(p, cluster) for p in plans],
        prefetched_units=[0 if kept else PREFETCHED_UNITS for kept in keeps],
        max_live_parameters=_EVERYTHING,
        batch_samples=[p.batch_size * p.gradient_accumulation_steps for p in plans],
        microbatches=[p.gradient_accumulation_steps for p in plans],
        checkpoint_layers=[checkpoint_layers(p.activation_checkpointing) for p in plans],
        offload_activations=[p.offload_activations for p in plans],
        offload_running=True,
        activation_loading_horizon=[p.activation_loading_horizon or LOADING_HORIZON for p in plans],
    )


def fsdp(plans: Sequence[Plan], job: Job, cluster: Cluster | None) -> Layout:
    """Plain FSDP: as SMP v2 without its degrees; hybrid strategies shard within a node."""
    if cluster is None and any("hybrid" in p.sharding_strategy for p in plans):
        raise ValueError("FSDP's hybrid strategies shard within a node: say on which cluster")
    keeps = [p.sharding_strategy in {"shard_grad_op", "_hybrid_shard_zero2"} for p in plans]
    return Layout.of_columns(
        over_frozen(fully_sharded(job), job),
        rows=len(plans),
        shard_level=3,
        shard_degree=[0 if cluster is None else shard_degree(p, cluster) for p in plans],
        prefetched_units=[0 if kept else PREFETCHED_UNITS for kept in keeps],
        max_live_parameters=_EVERYTHING,
        batch_samples=[p.batch_size * p.gradient_accumulation_steps for p in plans],
        microbatches=[p.gradient_accumulation_steps for p in plans],
        checkpoint_layers=[checkpoint_layers(p.activation_checkpointing) for p in plans],
    )
