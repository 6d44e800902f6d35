"""The training script for SMP v1 with TensorFlow: a GPT-2 decoder in Keras."""

from __future__ import annotations

from smp_advisor.errors import ExportError
from smp_advisor.export.script_imports import gathered
from smp_advisor.export.script_parts import Training, common_flags, common_values, require_auto_partition
from smp_advisor.export.template import render

__all__ = ["require", "requirements", "write"]


def require(training: Training) -> None:
    """Raise `ExportError` for models other than GPT-2, and for plans that the script does not support."""
    family, architecture, precision = training.model.family, training.architecture, training.plan.precision
    if family != "gpt2" or architecture.task != "causal":
        raise ExportError(
            f"The TensorFlow script supports only next-token prediction with the family 'gpt2', not"
            f" {architecture.title} with {family!r}: pass script= with your own script."
        )
    if precision != "fp32":
        raise ExportError(f"The TensorFlow script trains in fp32, not {precision}: pass script= with your own script.")
    require_auto_partition(training.plan)


def requirements(training: Training) -> list[str]:
    """Packages missing from the container: none."""
    del training
    return []


def write(training: Training) -> str:
    """Generate the script."""
    shape, sequence_length = training.model.shape, training.sequence_length
    values = common_values(training) | {
        "sizes": {
            "vocabulary": shape.vocab,
            "positions": sequence_length if training.lacks_positions else training.positions or sequence_length,
            "width": shape.hidden,
            "layers": shape.layers,
            "heads": shape.heads,
            "feed_forward": shape.ffn,
        },
    }
    flags = common_flags(training) | {
        "clip": False,
        "horovod": bool(training.plan.ddp),
        "evaluates": True,
        "tensorflow": True,
    }
    return gathered(render("train_smp_v1_tensorflow.py.in", values=values, flags=flags))
