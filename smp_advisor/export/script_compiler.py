"""The training script for Training Compiler, based on the Trainer of transformers."""

from __future__ import annotations

from smp_advisor.errors import ExportError
from smp_advisor.export.architectures import patched_release
from smp_advisor.export.literal import Comment
from smp_advisor.export.script_parts import Training, common_flags, common_values
from smp_advisor.export.template import render
from smp_advisor.libraries.transformers_release import oldest_script_release

__all__ = ["require", "requirements", "write"]


def require(training: Training) -> None:
    """Raise `ExportError` for jobs and models that the script does not support."""
    title = training.library.title
    if training.job.optimizer != "adam":
        raise ExportError(
            f"The training script for {title} uses Adam, not {training.job.optimizer!r}: pass script= with your own"
            " script."
        )
    if patched_release(training.architecture) != oldest_script_release():
        raise ExportError(
            f"The transformers release in the {title} containers does not support the family"
            f" {training.model.family!r}: choose another library, or pass script= with your own script."
        )


def requirements(training: Training) -> list[str]:
    """Packages missing from the container."""
    if training.container.transformers_version:
        return []
    return [f"transformers=={patched_release(training.architecture)}"]


def write(training: Training) -> str:
    """Generate the script."""
    return render(
        "train_compiler.py.in",
        values=common_values(training) | {"evaluation_note": Comment("")},
        flags=common_flags(training),
    )
