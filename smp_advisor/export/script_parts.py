"""What the training scripts of all libraries are written from."""

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
"""Share of a node's memory that the processes' own copies of the model may take while it is built."""


def common_values(model: Model, job: Job, plan: Plan, known: Architecture) -> dict[str, object]:
    """Values of the templates, whatever the library."""
    sequence_length = model.sequence_length(job.sequence_length)
    return {
        "model_name": Comment(f'"{comment(model.name)}"'),
        "parameters": Comment(f"{format_count(model.parameter_count)} parameters"),
        "task": Comment(known.title),
        "library": Comment(library_name(plan)),
        "plan": Comment(describe(plan)),
        "auto_model": Comment(known.auto_model),
        "family": model.family,
        "family_text": Comment(known.family),
        "configuration": _configuration(model, known, sequence_length),
        "batch_size": plan.batch_size,
        "sequence_length": sequence_length,
        "positions": positions(model, known),
        "precision": plan.precision,
        "precision_text": Comment(plan.precision),
        "activation_checkpointing": plan.activation_checkpointing or "none",
        "learning_rate": 0.0001 if job.optimizer == "adam" else 0.01,
        "mask_token_id": min(known.mask_token_id, max(0, model.shape.vocab - 1)),
        "dtype": Comment(DTYPES[plan.precision]),
        "layer_names": ["seq_layers", *known.layers],
    }


def common_flags(model: Model, job: Job, plan: Plan, known: Architecture) -> dict[str, bool]:
    """Flags of the templates, whatever the library."""
    return {task: known.task == task for task in _TASKS} | {
        "adam": job.optimizer == "adam",
        "fp16": plan.precision == "fp16",
        "half": plan.precision != "fp32",
        "half_inputs": False,
        "clip": True,
        "checkpoints_activations": bool(plan.activation_checkpointing),
        "more_positions": lacks_positions(model, known, model.sequence_length(job.sequence_length)),
    }


def copies_fit(model: Model, cluster: Cluster, bytes_per_parameter: float) -> bool:
    """Whether every process of a node can build the model in host memory."""
    copies_bytes = model.parameter_count * bytes_per_parameter * cluster.gpus_per_node
    return copies_bytes <= _HOST_SHARE * cluster.instance.host_memory_gib * 2**30


def positions(model: Model, known: Architecture) -> int:
    """Tokens that the table of positions is long enough for; 0 where there is no table."""
    return max(0, model.shape.max_positions - known.reserved_positions)


def lacks_positions(model: Model, known: Architecture, sequence_length: int) -> bool:
    """Whether sequences are longer than the table of positions."""
    return 0 < positions(model, known) < sequence_length


def _configuration(model: Model, known: Architecture, sequence_length: int) -> dict[str, object]:
    found = configuration(model)
    if lacks_positions(model, known, sequence_length):
        # An inferred shape's table of positions is inferred as well: here it is known how long it has to be.
        name = next(name for name in ("n_positions", "max_position_embeddings") if name in found)
        found[name] = sequence_length + known.reserved_positions
    if known.task == "text_classification":
        # Decoders find the last token of a sequence by it.
        found.setdefault("pad_token_id", 0)
    return found
