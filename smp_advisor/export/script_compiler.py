"""The training script for Training Compiler, based on the Trainer of transformers."""

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


def require(model: Model, job: Job, architecture: Architecture) -> None:
    """Raise `ExportError` for jobs and models that the script does not support."""
    if job.optimizer != "adam":
        raise ExportError(
            f"The training script for Training Compiler uses Adam, not {job.optimizer!r}: pass script= with your own"
            " script."
        )
    if architecture.newer:
        raise ExportError(
            f"The transformers release in the Training Compiler containers does not support the family"
            f" {model.family!r}: choose another library, or pass script= with your own script."
        )


def write(model: Model, job: Job, plan: Plan, architecture: Architecture) -> str:
    """Generate the script."""
    return render(
        "train_compiler.py.in",
        values=common_values(model, job, plan, architecture),
        flags=common_flags(model, job, plan, architecture),
    )
