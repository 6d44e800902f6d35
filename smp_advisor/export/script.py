"""The training script of a plan, and the cell that writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.errors import ExportError
from smp_advisor.export import script_compiler, script_smp_v1, script_tensorflow, script_torch
from smp_advisor.export.architectures import architecture_of, transformers_release
from smp_advisor.export.script_parts import lacks_positions, positions

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["SCRIPT_NAME", "builds", "require_writable", "requirements", "script_cell", "training_script"]

SCRIPT_NAME = "train_smp.py"
"""Name of the generated script, next to the notebook."""


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


def training_script(model: Model, cluster: Cluster, job: Job, plan: Plan) -> str:
    """Complete training script for `model` with the library and the techniques of `plan`.

    Precision, kind of sharding, prescaled batch and task are fixed in the script. It reads degrees, microbatches and
    sizes from the job, and stops immediately if the two disagree.

    Raises
    ------
    ExportError
        No transformers release in the containers of the library supports the model, or a setting of the plan requires
        changes that depend on the model.
    """
    require_writable(model, cluster, job, plan)
    architecture = architecture_of(model)
    if plan.library == "smp-v1":
        return script_smp_v1.write(model, cluster, job, plan, architecture)
    if plan.library == "smp-v1-tensorflow":
        return script_tensorflow.write(model, job, plan, architecture)
    if plan.library == "training-compiler":
        return script_compiler.write(model, job, plan, architecture)
    return script_torch.write(model, cluster, job, plan, architecture)


def require_writable(model: Model, cluster: Cluster, job: Job, plan: Plan) -> None:
    """Raise `ExportError` if no script can be generated for a model and plan."""
    if not builds(model):
        raise ExportError(
            f"No training script can be generated for {model.name!r}, which has no transformers configuration: pass"
            " script= with your own script."
        )
    if job.adapter is not None or job.optimizer not in {"adam", "sgd"}:
        setting = "an adapter" if job.adapter is not None else f"the optimizer {job.optimizer!r}"
        raise ExportError(
            f"The generated script trains all parameters with Adam or SGD, and the job has {setting}: pass script="
            " with your own script."
        )
    architecture = architecture_of(model)
    sequence_length = model.sequence_length(job.sequence_length)
    if lacks_positions(model, architecture, sequence_length) and model.origin != "inferred":
        raise ExportError(
            f"{model.name!r} has {positions(model, architecture)} positions and cannot train on sequences of"
            f" {sequence_length} tokens: shorten the sequence, or describe the model with more positions."
        )
    if plan.library == "smp-v1":
        script_smp_v1.require(plan)
    elif plan.library == "smp-v1-tensorflow":
        script_tensorflow.require(model, plan, architecture)
    elif plan.library == "training-compiler":
        script_compiler.require(model, job, architecture)
    else:
        script_torch.require(model, cluster, plan)


def requirements(model: Model, plan: Plan) -> str:
    """``requirements.txt`` of the generated script: packages missing from its container."""
    release = transformers_release(architecture_of(model), plan)
    lines = [f"transformers=={release}"] if release else []
    if plan.library == "smp-v2":
        lines.append("accelerate")
    return "".join(f"{line}\n" for line in lines)
