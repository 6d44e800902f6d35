"""Template values and flags that the training scripts of all libraries share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.export.architectures import Architecture, configuration
from smp_advisor.export.describing import describe, library_name
from smp_advisor.export.literal import Comment, comment
from smp_advisor.workload.counts import format_count

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["DTYPES", "common_flags", "common_values", "copies_fit", "lacks_positions", "positions"]

DTYPES = {"fp16": "torch.float16", "bf16": "torch.bfloat16", "fp32": "torch.float32"}

_TASKS = ("causal", "masked", "sequence_to_sequence", "text_classification", "image_classification")
_HOST_SHARE = 0.7
"""Fraction of the host memory that the copies of the model in all processes may use while it is built."""


def common_values(model: Model, job: Job, plan: Plan, architecture: Architecture) -> dict[str, object]:
    """Template values for all libraries."""
    sequence_length = model.sequence_length(job.sequence_length)
    return {
        "model_name": Comment(f'"{comment(model.name)}"'),
        "parameters": Comment(f"{format_count(model.parameter_count)} parameters"),
        "task": Comment(architecture.title),
        "library": Comment(library_name(plan)),
        "plan": Comment(describe(plan)),
        "auto_model": Comment(architecture.auto_model),
        "family": model.family,
        "family_text": Comment(architecture.family),
        "configuration": _configuration(model, architecture, sequence_length),
        "batch_size": plan.batch_size,
        "sequence_length": sequence_length,
        "positions": positions(model, architecture),
        "precision": plan.precision,
        "precision_text": Comment(plan.precision),
        "activation_checkpointing": plan.activation_checkpointing or "none",
        "learning_rate": 0.0001 if job.optimizer == "adam" else 0.01,
        "mask_token_id": min(architecture.mask_token_id, max(0, model.shape.vocab - 1)),
        "dtype": Comment(DTYPES[plan.precision]),
        "layer_names": ["seq_layers", *architecture.layers],
    }


def common_flags(model: Model, job: Job, plan: Plan, architecture: Architecture) -> dict[str, bool]:
    """Template flags for all libraries."""
    return {task: architecture.task == task for task in _TASKS} | {
        "adam": job.optimizer == "adam",
        "fp16": plan.precision == "fp16",
        "half": plan.precision != "fp32",
        "half_inputs": False,
        "clip": True,
        "checkpoints_activations": bool(plan.activation_checkpointing),
        "more_positions": lacks_positions(model, architecture, model.sequence_length(job.sequence_length)),
    }


def copies_fit(model: Model, cluster: Cluster, bytes_per_parameter: float) -> bool:
    """Whether the host memory is large enough for one copy of the model per GPU."""
    copies_bytes = model.parameter_count * bytes_per_parameter * cluster.gpus_per_node
    return copies_bytes <= _HOST_SHARE * cluster.instance.host_memory_gib * 2**30


def positions(model: Model, architecture: Architecture) -> int:
    """Longest sequence that the position embeddings support, in tokens; 0 without position embeddings."""
    return max(0, model.shape.max_positions - architecture.reserved_positions)


def lacks_positions(model: Model, architecture: Architecture, sequence_length: int) -> bool:
    """Whether the sequence is longer than the position embeddings support."""
    return 0 < positions(model, architecture) < sequence_length


def _configuration(model: Model, architecture: Architecture, sequence_length: int) -> dict[str, object]:
    settings = configuration(model)
    if lacks_positions(model, architecture, sequence_length):
        # The number of positions of an inferred shape is inferred too: use the sequence length.
        name = next(name for name in ("n_positions", "max_position_embeddings") if name in settings)
        settings[name] = sequence_length + architecture.reserved_positions
    if architecture.task == "text_classification":
        # Decoders use it to find the last token of a sequence.
        settings.setdefault("pad_token_id", 0)
    return settings
