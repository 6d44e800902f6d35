"""The training script of SMP v1 with TensorFlow: a GPT-2 decoder in Keras."""

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


def require(model: Model, plan: Plan, known: Architecture) -> None:
    """Refuse models other than GPT-2's, and what the script does not do."""
    if model.family != "gpt2" or known.task != "causal":
        raise ExportError(
            f"The TensorFlow script is written for next-token prediction by the family 'gpt2', not for {known.title} by"
            f" {model.family!r}: pass script= with your own."
        )
    if plan.precision != "fp32":
        raise ExportError(f"The TensorFlow script trains in fp32, not {plan.precision}: pass script= with your own.")
    if not plan.auto_partition:
        raise ExportError(
            "auto_partition=False leaves it to the script to place layers on pipeline stages, which differs from model"
            " to model: set auto_partition=True, or pass script= with your own."
        )


def write(model: Model, job: Job, plan: Plan, known: Architecture) -> str:
    """Write the script out."""
    sequence_length = model.sequence_length(job.sequence_length)
    shape = model.shape
    longer = lacks_positions(model, known, sequence_length)
    values = common_values(model, job, plan, known) | {
        "sizes": {
            "vocabulary": shape.vocab,
            "positions": sequence_length if longer else positions(model, known) or sequence_length,
            "width": shape.hidden,
            "layers": shape.layers,
            "heads": shape.heads,
            "feed_forward": shape.ffn,
        },
    }
    flags = common_flags(model, job, plan, known) | {"clip": False, "horovod": bool(plan.ddp)}
    return render("train_smp_v1_tensorflow.py.in", values=values, flags=flags)
