"""Techniques of a plan as rungs of a ladder: the settings that turn them off, and their titles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.libraries.groups import shard_degree
from smp_advisor.libraries.library import plan_fields

if TYPE_CHECKING:
    from smp_advisor.guidance.planned_run import PlannedRun
    from smp_advisor.libraries.plan import Plan

__all__ = ["batch_parts", "off_settings", "rung_title", "start_title", "technique_fields"]

_OFF: dict[str, dict[str, Any]] = {
    "optimizer_state_sharding": {"shard_optimizer_state": False, "sharded_data_parallel_degree": 1},
    "activation_checkpointing": {"activation_checkpointing": False},
    "tensor_parallelism": {"tensor_parallel_degree": 1},
    "tensor_parallel_degree": {"tensor_parallel_degree": 1},
    "pipeline_parallelism": {"pipeline_parallel_degree": 1},
    "partitions": {"partitions": 1},
    "context_parallelism": {"context_parallel_degree": 1},
    "expert_parallelism": {"expert_parallel_degree": 1},
    "offloading": {"offload_activations": False},
}
"""Settings without a technique, by the argument of its practice (`Practice.argument`)."""


def technique_fields(argument: str) -> frozenset[str]:
    """Fields of plans that belong to a technique, by the argument of its practice."""
    others = {
        "sharding": {"hybrid_shard_degree", "sharding_strategy"},
        "batch": {"gradient_accumulation_steps"},
        "microbatches": {"microbatches"},
    }
    return frozenset({*_OFF.get(argument, {}), *others.get(argument, ())})


def off_settings(argument: str, run: PlannedRun) -> dict[str, Any]:
    """Settings of a plan that turn one of its techniques off; empty if the plan does not use it."""
    plan = run.plan
    off = _unsharded(run) if argument == "sharding" else _OFF.get(argument, {})
    own = {name: value for name, value in off.items() if name in plan_fields(plan.library)}
    return own if any((getattr(plan, name) or False) != (value or False) for name, value in own.items()) else {}


def _unsharded(run: PlannedRun) -> dict[str, Any]:
    """SMP v2 trains without sharding at degree 1. FSDP's least sharding is that inside a node."""
    if "hybrid_shard_degree" in plan_fields(run.plan.library):
        return {"hybrid_shard_degree": 1} if shard_degree(run.plan, run.cluster) > 1 else {}
    return (
        {"sharding_strategy": "hybrid_shard"} if shard_degree(run.plan, run.cluster) > run.cluster.gpus_per_node else {}
    )


def start_title(plan: Plan, run: PlannedRun) -> str:
    """Title of the plan without any technique."""
    shards = shard_degree(plan, run.cluster)
    parts = batch_parts(plan)
    batch = f", {parts}" if parts else ""
    if shards > 1:
        return f"sharding over {shards} GPUs, which the library requires{batch}"
    return f"the entire model on {'each' if run.cluster.gpus > 1 else 'the'} GPU{batch}"


def batch_parts(plan: Plan) -> str:
    """Parts of a batch that run one after the other: ``4 microbatches``; empty if it runs at once."""
    if plan.microbatches > 1:
        return f"{plan.microbatches:,} microbatches"
    steps = plan.gradient_accumulation_steps
    return f"{steps:,} accumulated batches" if steps > 1 else ""


def rung_title(argument: str, plan: Plan, run: PlannedRun) -> str:
    """Title of a technique of a plan, by the argument of its practice."""
    if argument == "optimizer_state_sharding" and plan.sharded_data_parallel_degree == 1:
        return "optimizer-state sharding"
    if argument == "activation_checkpointing":
        strategy = plan.activation_checkpointing
        return "activation checkpointing" + (f" ({strategy})" if strategy not in {False, "each"} else "")
    if argument in {"pipeline_parallelism", "partitions"}:
        return f"{plan.pipeline_parallel_degree} pipeline stages"
    degrees = {
        "optimizer_state_sharding": ("sharded data parallelism", plan.sharded_data_parallel_degree),
        "sharding": ("sharding", shard_degree(plan, run.cluster)),
        "tensor_parallelism": ("tensor parallelism", plan.tensor_parallel_degree),
        "tensor_parallel_degree": ("tensor parallelism", plan.tensor_parallel_degree),
        "context_parallelism": ("context parallelism", plan.context_parallel_degree),
        "expert_parallelism": ("expert parallelism", plan.expert_parallel_degree),
    }
    if argument in degrees:
        name, degree = degrees[argument]
        return f"{name} over {degree} GPUs"
    return "activation offloading"
