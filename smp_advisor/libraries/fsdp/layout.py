"""Layouts of FSDP plans for the cost model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.elementwise import anywhere, is_in, where
from smp_advisor.libraries.columns import SHARDING_STRATEGIES
from smp_advisor.libraries.layout import EVERYTHING, Layout, checkpoint_columns
from smp_advisor.libraries.state_bytes import fully_sharded, trained

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.elementwise import Floats
    from smp_advisor.libraries.columns import PlanColumns
    from smp_advisor.workload.job import Job

__all__ = ["layout", "prefetched_units"]

_HYBRID, _KEEPING = (
    [SHARDING_STRATEGIES.index(name) for name in names]
    for names in (("hybrid_shard", "_hybrid_shard_zero2"), ("shard_grad_op", "_hybrid_shard_zero2"))
)

_PREFETCHED_UNITS = 2
"""Gathered blocks of FSDP: the running one and the next (``limit_all_gathers``, backward prefetch)."""


def prefetched_units(plans: PlanColumns) -> Floats:
    """Blocks gathered at a time; 0 if the strategy keeps all gathered blocks until the backward pass."""
    return where(is_in(plans["sharding_strategy"], _KEEPING), 0, _PREFETCHED_UNITS)


def layout(plans: PlanColumns, job: Job, cluster: Cluster | None = None) -> Layout:
    """Columns of the cost model for columns of plans. Hybrid strategies shard within a node."""
    hybrid = is_in(plans["sharding_strategy"], _HYBRID)
    if cluster is None and anywhere(hybrid):
        raise ValueError("FSDP's hybrid strategies shard within a node: pass the cluster")
    node, gpus = (0, 0) if cluster is None else (min(cluster.gpus_per_node, cluster.gpus), cluster.gpus)
    return Layout.of_columns(
        trained(fully_sharded(job), job),
        rows=plans.rows,
        shard_level=3,
        shard_degree=where(hybrid, node, gpus),
        prefetched_units=prefetched_units(plans),
        max_live_parameters=EVERYTHING,
        batch_samples=plans["batch_size"] * plans["gradient_accumulation_steps"],
        microbatches=plans["gradient_accumulation_steps"],
        **checkpoint_columns(plans["activation_checkpointing"]),
    )
