"""Fields of SMP v2 plans that other fields and the cluster determine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.libraries.smp_v2.mismatches import SMDDP_INSTANCES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.plan import Plan

__all__ = ["follow_ups"]


def follow_ups(plan: Plan, settings: Mapping[str, Any], cluster: Cluster) -> dict[str, Any]:
    """The kind of offloading, and NCCL if SageMaker's own collectives do not run or have nothing to gather."""
    result: dict[str, Any] = {}
    if settings["offload_activations"] != plan.offload_activations:
        result["sm_activation_offloading"] = None
    if settings["hybrid_shard_degree"] == 1 or cluster.instance.name not in SMDDP_INSTANCES:
        result["distributed_backend"] = "nccl"
    return result
