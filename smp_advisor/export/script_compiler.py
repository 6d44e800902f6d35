"""The training script for Training Compiler: Trainer of transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.errors import ExportError
from smp_advisor.export.script_parts import common_flags, common_values
from smp_advisor.export.template import render

if TYPE_CHECKING:
    from smp_advisor.export.architectures import Architecture
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["require", "write"]


def require(model: Model, job: Job, known: Architecture) -> None:
    """Refuse what the container's transformers cannot train."""
    if job.optimizer != "adam":
        raise ExportError(
            f"The training script for Training Compiler trains with Adam, not {job.optimizer!r}: pass script= with"
            " your own."
        )
    if known.newer:
        raise ExportError(
            f"The transformers release in Training Compiler's containers has no models of the family {model.family!r}:"
            " choose another library, or pass script= with your own."
        )


def write(model: Model, job: Job, plan: Plan, known: Architecture) -> str:
    """Write the script out."""
    return render(
        "train_compiler.py.in",
        values=common_values(model, job, plan, known),
        flags=common_flags(model, job, plan, known),
    )
