"""The training script of a plan, and the cell that writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from smp_advisor.errors import ExportError
from smp_advisor.export import script_compiler, script_smp_v1, script_tensorflow, script_torch
from smp_advisor.export.architectures import architecture_of
from smp_advisor.export.script_parts import Training
from smp_advisor.libraries.check import unscripted_adapter

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["SCRIPT_NAME", "builds", "require_writable", "requirements", "script_cell", "training_script"]

SCRIPT_NAME = "train_smp.py"
"""Name of the generated script, next to the notebook."""


class _Kind(Protocol):
    """Module that generates one kind of script."""

    def require(self, training: Training) -> None:
        """Raise `ExportError` for a training run that the script does not support."""

    def requirements(self, training: Training) -> list[str]:
        """Packages missing from the container."""

    def write(self, training: Training) -> str:
        """Generate the script."""


_KINDS: dict[str, _Kind] = {
    "torch": script_torch,
    "smp_step": script_smp_v1,
    "keras": script_tensorflow,
    "trainer": script_compiler,
}


def builds(model: Model) -> bool:
    """Whether the model has a transformers configuration, from which a script can be generated."""
    return model.config_json.strip() not in ("", "{}")


def script_cell(model: Model, cluster: Cluster, job: Job, plan: Plan) -> str:
    """Cell that writes the training script; empty if the model is defined by the user's code.

    It runs before the job cell, which packs the script together with its requirements.
    """
    if not builds(model):
        return ""
    return f"%%writefile {SCRIPT_NAME}\n" + training_script(model, cluster, job, plan)


def training_script(model: Model, cluster: Cluster, job: Job, plan: Plan, *, small_copy: bool = False) -> str:
    """Complete training script for `model` with the library and the techniques of `plan`.

    Precision, kind of sharding, prescaled batch and task are fixed in the script. It reads degrees, microbatches and
    sizes from the job, and stops immediately if the two disagree.

    Parameters
    ----------
    small_copy
        Whether `model` stands for a larger one whose data it is to read: the script reduces its vocabulary.

    Raises
    ------
    ExportError
        No transformers release in the containers of the library supports the model, or a setting of the plan requires
        changes that depend on the model.
    """
    training = _training(model, cluster, job, plan, small_copy=small_copy)
    return _KINDS[training.library.script].write(training)


def require_writable(model: Model, cluster: Cluster, job: Job, plan: Plan) -> None:
    """Raise `ExportError` if no script can be generated for a model and plan."""
    _training(model, cluster, job, plan)


def requirements(model: Model, cluster: Cluster, job: Job, plan: Plan) -> str:
    """``requirements.txt`` of the generated script: packages missing from its container."""
    training = Training(model=model, cluster=cluster, job=job, plan=plan, architecture=architecture_of(model))
    return "".join(f"{package}\n" for package in _KINDS[training.library.script].requirements(training))


def _training(model: Model, cluster: Cluster, job: Job, plan: Plan, *, small_copy: bool = False) -> Training:
    """The training run, if a script can be generated for it."""
    if not builds(model):
        raise ExportError(
            f"No training script can be generated for {model.name!r}, which has no transformers configuration: pass"
            " script= with your own script."
        )
    if job.optimizer not in {"adam", "sgd"}:
        raise ExportError(
            f"The generated script trains with Adam or SGD, and the job has the optimizer {job.optimizer!r}: pass"
            " script= with your own script."
        )
    if objection := unscripted_adapter(plan.library, job):
        raise ExportError(objection)
    training = Training(
        model=model,
        cluster=cluster,
        job=job,
        plan=plan,
        architecture=architecture_of(model),
        small_copy=small_copy,
    )
    if training.lacks_positions and model.origin != "inferred":
        raise ExportError(
            f"{model.name!r} has {training.positions} positions and cannot train on sequences of"
            f" {training.sequence_length} tokens: shorten the sequence, or describe the model with more positions."
        )
    _KINDS[training.library.script].require(training)
    return training
