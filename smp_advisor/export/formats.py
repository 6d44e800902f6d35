"""A plan in the formats of other launchers: HyperPod recipes, Kubernetes and Slurm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.arguments import require_types
from smp_advisor.errors import ExportError
from smp_advisor.export.cluster_job import cluster_job
from smp_advisor.export.hyperpod_recipe import recipe_override
from smp_advisor.export.kubernetes import pytorch_job
from smp_advisor.export.slurm import sbatch
from smp_advisor.libraries.plan import Plan

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.export.launch import ScriptCheck
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["FORMATS", "exported", "format_cell"]

FORMATS = {"hyperpod-recipe": "recipe.yaml", "kubernetes": "job.yaml", "slurm": "job.sbatch"}
"""Formats, and the name of the file that `format_cell` writes."""


def exported(
    model: Model,
    cluster: Cluster,
    job: Job,
    plan: Plan,
    *,
    format: str,  # noqa: A002 - the word that users know
    min_fit_probability: float = 0.95,
    script_check: ScriptCheck | None = None,
    **options: Any,
) -> str:
    """The job of a plan for another launcher than SageMaker's.

    Parameters
    ----------
    model, cluster, job, plan
        The model, the hardware, the training job and the plan.
    format
        ``"hyperpod-recipe"`` (SMP v2: the keys of a recipe that follow from the plan), ``"kubernetes"`` (a PyTorchJob
        of the Kubeflow training operator) or ``"slurm"`` (a batch script), both for FSDP and DDP.
    min_fit_probability
        Required probability that the plan fits. A Slurm job below it stops with the reason, a Kubernetes job is
        suspended, and a recipe is refused.
    script_check
        Check of a script of the user, whose warnings are in the header.
    options
        Options of the job, see `smp_advisor.export.cluster_job.ClusterOptions`.

    Raises
    ------
    ExportError
        The format cannot express the job, or an option is invalid.
    """
    require_types({"format": (format, str), "plan": (plan, Plan)}, "export")
    if format not in FORMATS:
        raise ExportError(f"format must be one of {', '.join(FORMATS)}, not {format!r}.")
    content = cluster_job(
        model, cluster, job, plan, min_fit_probability=min_fit_probability, script_check=script_check, **options
    )
    if format == "slurm":
        return sbatch(content)
    if format == "kubernetes":
        return pytorch_job(content)
    return recipe_override(content, model, job.sequence_length)


def format_cell(text: str, format: str) -> str:  # noqa: A002
    """Notebook cell that writes an exported job into a file."""
    return f"%%writefile {FORMATS[format]}\n{text}"
