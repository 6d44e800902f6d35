"""Labels of the parts of memory and of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.libraries.library import get_library, plan_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.libraries.plan import Plan

__all__ = ["CATEGORY_LABELS", "TIME_LABELS", "plan_text", "time_labels"]

CATEGORY_LABELS: Mapping[str, str] = {
    "parameters_gib": "Parameters",
    "gradients_gib": "Gradients",
    "optimizer_state_gib": "Optimizer state",
    "fp32_copies_gib": "fp32 copies",
    "activations_gib": "Activations",
    "recomputation_gib": "Recomputation",
    "logits_gib": "Logits and loss",
    "communication_gib": "Communication buffers",
    "optimizer_step_gib": "Optimizer step",
    "allocator_reserve_gib": "Allocator reserve",
    "context_gib": "CUDA context",
}

TIME_LABELS: Mapping[str, str] = {
    "forward_seconds": "Forward",
    "backward_seconds": "Backward",
    "recomputation_seconds": "Recomputation",
    "tensor_parallel_seconds": "Tensor parallel communication",
    "pipeline_bubble_seconds": "Pipeline bubble",
    "data_parallel_seconds": "Data parallel communication",
    "optimizer_seconds": "Optimizer",
    "offload_seconds": "Offloading",
    "allocator_seconds": "Allocator",
}


def time_labels(library: str) -> Mapping[str, str]:
    """Labels of the parts of a step, by field of the estimate."""
    if "context_parallel_degree" not in plan_fields(library):
        return TIME_LABELS
    # Context and expert parallelism also communicate inside blocks.
    return {**TIME_LABELS, "tensor_parallel_seconds": "Communication inside blocks"}


_SHORT: Mapping[str, str] = {
    "hybrid_shard_degree": "shards",
    "sharded_data_parallel_degree": "shards",
    "shard_optimizer_state": "sharded optimizer state",
    "sharding_strategy": "strategy",
    "tensor_parallel_degree": "TP",
    "pipeline_parallel_degree": "PP",
    "partitions": "PP",
    "context_parallel_degree": "CP",
    "expert_parallel_degree": "EP",
    "activation_checkpointing": "checkpointing",
    "offload_activations": "offloading",
    "gradient_accumulation_steps": "accumulated batches",
    "batch_size": "batch",
}


def plan_text(plan: Plan) -> str:
    """Techniques of a plan in one line: ``shards 16, TP 2, checkpointing each, batch 16``."""
    names = dict.fromkeys([*get_library(plan.library).alternatives, "batch_size"])
    parts = []
    for name in names:
        value = getattr(plan, name, None)
        title = _SHORT.get(name, name.replace("_", " "))
        if value is True:
            parts.append(title)
        elif value not in (None, False, 1, 0, "none", ""):
            parts.append(f"{title} {str(value).replace('_', ' ')}")
    return ", ".join(parts)
