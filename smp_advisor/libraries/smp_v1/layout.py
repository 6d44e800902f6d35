"""Layouts of SMP v1 plans for the cost model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.elementwise import where
from smp_advisor.libraries.layout import Layout, checkpoint_columns
from smp_advisor.libraries.pipeline_schedule import SIMPLE, default_active_microbatches
from smp_advisor.libraries.schema import default_of
from smp_advisor.libraries.state_bytes import smp_v1, trained

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.elementwise import Floats
    from smp_advisor.libraries.columns import PlanColumns
    from smp_advisor.workload.job import Job

__all__ = ["layout"]


def layout(plans: PlanColumns, job: Job, cluster: Cluster | None = None) -> Layout:
    """Columns of the cost model for columns of plans."""
    tensor, pipeline = plans["tensor_parallel_degree"], plans["pipeline_parallel_degree"]
    shards, microbatches, active = (
        plans["sharded_data_parallel_degree"],
        plans["microbatches"],
        plans["active_microbatches"],
    )
    simple = plans["pipeline"] == SIMPLE
    in_flight = where(active == 0, default_active_microbatches(pipeline, microbatches), active)
    return Layout.of_columns(
        trained(smp_v1(job), job),
        rows=plans.rows,
        tensor_parallel_degree=tensor,
        pipeline_parallel_degree=pipeline,
        shard_level=where(shards > 1, 3, plans["shard_optimizer_state"]),
        shard_degree=where(shards > 1, shards, 0),
        # Without prescaled_batch, every rank of a tensor-parallel group reads a batch, and the group processes all of
        # them together.
        batch_samples=plans["batch_size"] * where(plans["prescaled_batch"], 1, tensor),
        microbatches=microbatches,
        active_microbatches=where(simple, microbatches, in_flight),
        simple_pipeline=simple,
        **checkpoint_columns(plans["activation_checkpointing"]),
        offload_activations=plans["offload_activations"],
        activation_loading_horizon=_or_default(plans, "activation_loading_horizon"),
        split_checkpoints=(plans["optimize"] == "memory") & (tensor > 1),
        max_live_parameters=_or_default(plans, "sdp_max_live_parameters"),
        reduce_bucket_elements=_or_default(plans, "sdp_reduce_bucket_size"),
        two_level_gather=plans["sdp_hierarchical_allgather"],
        overlapped_gather=_own_gather(cluster) & (plans["ddp_dist_backend"] == 0),
        replicas_reduced_once=True,
        host_handover=True,
        gather_after_step=True,
        spread_placement=plans["placement_strategy"] == "spread",
    )


_OWN_GATHER_INSTANCE = "ml.p4d.24xlarge"
"""Instance on which ``ddp_dist_backend="auto"`` uses SMDDP's all-gather, across nodes (documentation of the library's
sharded data parallelism; from version 1.13)."""


def _own_gather(cluster: Cluster | None) -> bool:
    return cluster is not None and cluster.nodes > 1 and cluster.instance.name == _OWN_GATHER_INSTANCE


def _or_default(plans: PlanColumns, name: str) -> Floats:
    values = plans[name]
    return where(values == 0, default_of(name), values)
