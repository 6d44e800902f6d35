"""The training script for SMP v1 with TensorFlow: a GPT-2 decoder in Keras."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.errors import ExportError
from smp_advisor.export.script_parts import common_flags, common_values, lacks_positions, positions
from smp_advisor.export.template import render

if TYPE_CHECKING:
    from smp_advisor.export.architectures import Architecture
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["require", "write"]


def require(model: Model, plan: Plan, architecture: Architecture) -> None:
    """Raise `ExportError` for models other than GPT-2, and for plans that the script does not support."""
    if model.family != "gpt2" or architecture.task != "causal":
        raise ExportError(
            f"The TensorFlow script supports only next-token prediction with the family 'gpt2', not"
            f" {architecture.title} with {model.family!r}: pass script= with your own script."
        )
    if plan.precision != "fp32":
        raise ExportError(
            f"The TensorFlow script trains in fp32, not {plan.precision}: pass script= with your own script."
        )
    if not plan.auto_partition:
        raise ExportError(
            "auto_partition=False requires a script that places layers on pipeline stages, which depends on the model:"
            " set auto_partition=True, or pass script= with your own script."
        )


def write(model: Model, job: Job, plan: Plan, architecture: Architecture) -> str:
    """Generate the script."""
    sequence_length = model.sequence_length(job.sequence_length)
    shape = model.shape
    longer = lacks_positions(model, architecture, sequence_length)
    values = common_values(model, job, plan, architecture) | {
        "sizes": {
            "vocabulary": shape.vocab,
            "positions": sequence_length if longer else positions(model, architecture) or sequence_length,
            "width": shape.hidden,
            "layers": shape.layers,
            "heads": shape.heads,
            "feed_forward": shape.ffn,
        },
    }
    flags = common_flags(model, job, plan, architecture) | {"clip": False, "horovod": bool(plan.ddp)}
    return render("train_smp_v1_tensorflow.py.in", values=values, flags=flags)
