"""Writing a plan as the library's dictionary and the script's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.library.plan import Plan

__all__ = ["SCRIPT_SETTINGS", "hyperparameters", "parameters", "without_effect"]

SCRIPT_SETTINGS = ("batch_size", "activation_checkpointing")
"""Fields of a plan that the training script reads; all others are the library's."""

_ALWAYS = ("microbatches", "ddp", "optimize")
"""Written even at their default: documentation and library disagree on the default of ``optimize``
(documentation: memory; library: speed), and ddp is needed wherever a replica is smaller than the cluster."""

_WHERE_CHANGED = (
    "placement_strategy",
    "prescaled_batch",
    "shard_optimizer_state",
    "sharded_data_parallel_degree",
    "sdp_reduce_bucket_size",
    "sdp_param_persistence_threshold",
    "sdp_max_live_parameters",
    "sdp_hierarchical_allgather",
    "sdp_gradient_clipping",
    "fp16",
    "bf16",
    "offload_activations",
    "activation_loading_horizon",
    "auto_partition",
    "default_partition",
    "memory_weight",
    "delayed_parameter_initialization",
    "skip_tracing",
    "ddp_dist_backend",
    "tensor_parallel_seed",
)


def parameters(plan: Plan, *, known: frozenset[str], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """``mp_parameters`` of a plan.

    Parameters
    ----------
    plan
        The plan.
    known
        Names that exist in the plan's library version.
    defaults
        The plan's own field defaults: what equals them is left out, degrees and `_ALWAYS` aside.
    """
    # The name pipeline_parallel_degree came with 1.6; before, the same parameter is `partitions`.
    degree = "pipeline_parallel_degree" if "pipeline_parallel_degree" in known else "partitions"
    written: dict[str, Any] = {degree: plan.pipeline_parallel_degree}
    if plan.default_partition is not None:
        # The SageMaker SDK (2.x) compares default_partition with `partitions` and raises KeyError without it.
        written["partitions"] = plan.pipeline_parallel_degree
    if "tensor_parallel_degree" in known or plan.tensor_parallel_degree != 1:
        written["tensor_parallel_degree"] = plan.tensor_parallel_degree
    written.update({name: getattr(plan, name) for name in _ALWAYS})
    if plan.active_microbatches is not None:
        written["active_microbatches"] = plan.active_microbatches
    if plan.pipeline_parallel_degree != 1 or plan.pipeline != defaults["pipeline"]:
        written["pipeline"] = plan.pipeline
    for name in _WHERE_CHANGED:
        value = getattr(plan, name)
        # By type as well: 1 equals True, but the library tells them apart.
        if value != defaults[name] or type(value) is not type(defaults[name]):
            written[name] = value
    return written


def hyperparameters(plan: Plan) -> dict[str, Any]:
    """Script settings of a plan: batch size, checkpointing strategy, precision."""
    return {
        "batch_size": plan.batch_size,
        "activation_checkpointing": plan.activation_checkpointing or "none",
        "precision": plan.precision,
    }


def without_effect(plan: Plan) -> tuple[str, ...]:
    """Optional fields that are set although nothing in the plan reads them."""
    unread: list[str] = []
    if plan.sharded_data_parallel_degree == 1:
        unread += [name for name in _WHERE_CHANGED if name.startswith("sdp_")]
    if not plan.offload_activations:
        unread.append("activation_loading_horizon")
    return tuple(name for name in unread if getattr(plan, name) is not None)
