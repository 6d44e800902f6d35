"""The training script of a plan, and the cell that writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.errors import ExportError
from smp_advisor.export import script_compiler, script_smp_v1, script_tensorflow, script_torch
from smp_advisor.export.architectures import architecture, transformers_release
from smp_advisor.export.script_parts import lacks_positions, positions

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["SCRIPT_NAME", "builds", "require_writable", "requirements", "script_cell", "training_script"]

SCRIPT_NAME = "train_smp.py"
"""File that the script cell writes, beside the notebook."""


def builds(model: Model) -> bool:
    """Whether a script can be written: the model is described by a transformers configuration, not by code."""
    return model.config_json.strip() not in ("", "{}")


def script_cell(model: Model, cluster: Cluster, job: Job, plan: Plan) -> str:
    """Cell that writes the training script; empty where the model is the user's own code.

    It stands above the estimator's cell, which packs the file together with its requirements.
    """
    if not builds(model):
        return ""
    return f"%%writefile {SCRIPT_NAME}\n" + training_script(model, cluster, job, plan)


def training_script(model: Model, cluster: Cluster, job: Job, plan: Plan) -> str:
    """Complete training script for `model` as `plan` runs it, in the library of the plan.

    The script is written for what changes its text (precision, kind of sharding, prescaled batch, task); degrees,
    microbatches and sizes it takes from the job, and it stops at once where the two disagree.

    Raises
    ------
    ExportError
        Where no release of transformers that runs in the library's containers builds the model, or the plan asks for
        what a script can only do by hand.
    """
    require_writable(model, cluster, job, plan)
    known = architecture(model)
    if plan.library == "smp-v1":
        return script_smp_v1.write(model, cluster, job, plan, known)
    if plan.library == "smp-v1-tensorflow":
        return script_tensorflow.write(model, job, plan, known)
    if plan.library == "training-compiler":
        return script_compiler.write(model, job, plan, known)
    return script_torch.write(model, cluster, job, plan, known)


def require_writable(model: Model, cluster: Cluster, job: Job, plan: Plan) -> None:
    """Raise `ExportError` where no script can be written for a model and plan."""
    if not builds(model):
        raise ExportError(
            f"No training script can be written for {model.name!r}, which is not described by a transformers"
            " configuration: pass script= with your own."
        )
    if job.adapter is not None or job.optimizer not in {"adam", "sgd"}:
        what = "an adapter" if job.adapter is not None else f"the optimizer {job.optimizer!r}"
        raise ExportError(
            f"The training script trains every parameter with Adam or SGD, and the job asks for {what}: pass script="
            " with your own."
        )
    known = architecture(model)
    sequence_length = model.sequence_length(job.sequence_length)
    if lacks_positions(model, known, sequence_length) and model.origin != "inferred":
        raise ExportError(
            f"{model.name!r} has {positions(model, known)} positions and cannot train on sequences of"
            f" {sequence_length} tokens: shorten the sequence, or describe the model with more positions."
        )
    if plan.library == "smp-v1":
        script_smp_v1.require(plan)
    elif plan.library == "smp-v1-tensorflow":
        script_tensorflow.require(model, plan, known)
    elif plan.library == "training-compiler":
        script_compiler.require(model, job, known)
    else:
        script_torch.require(model, cluster, plan)


def requirements(model: Model, plan: Plan) -> str:
    """``requirements.txt`` of the generated script: what its container does not hold."""
    release = transformers_release(architecture(model), plan)
    lines = [f"transformers=={release}"] if release else []
    if plan.library == "smp-v2":
        lines.append("accelerate")
    return "".join(f"{line}\n" for line in lines)
