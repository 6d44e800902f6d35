"""Controls of the training run: the kind of training code, and settings of the training script."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smp_advisor.costs import estimate
from smp_advisor.libraries.registry import get_library
from smp_advisor.workload.stack import AUTO, stack, stacks
from smp_advisor.workload.training_settings import training_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.advice import Advice
    from smp_advisor.libraries.control_codec import Settings
    from smp_advisor.workload.job import Job

__all__ = ["STACK", "job_labels", "job_settings", "stack_help", "stack_text", "stacks_for", "with_job"]

STACK = "stack"


def job_labels(library: str) -> Mapping[str, str]:
    """Labels of the controls, by field of the job."""
    supported = get_library(library).training_settings
    own = {name: setting.title for name, setting in training_settings().items() if name in supported}
    return {STACK: "Code", **own}


def job_settings(job: Job, library: str) -> Settings:
    """Values of the controls."""
    return {name: getattr(job, name) for name in job_labels(library)}


def stacks_for(advice: Advice) -> list[str]:
    """Kinds of code that the library's framework can run, the exported script first."""
    of_framework = get_library(advice.plan.library).stack
    tensorflow = of_framework == "tensorflow"
    names = [name for name in stacks() if (name == "tensorflow") == tensorflow]
    return [AUTO, *names]


def stack_text(name: str, library: str) -> str:
    """Title of a kind of code. The exported script's is marked as inferred."""
    if name == AUTO:
        return f"exported script (inferred): {stack(get_library(library).stack).title}"
    return stack(name).title


def stack_help(name: str, library: str) -> str:
    """Tooltip: the selected kind of code, and the setting of the job."""
    summary = stack(get_library(library).stack if name == AUTO else name).summary
    return f"Kind of training code, which decides kernels and launches. {summary} Setting of the job: stack."


def with_job(advice: Advice, settings: Settings) -> Advice:
    """The advice with other settings of the job. Its plan is estimated again, not chosen again.

    Raises
    ------
    JobError
        There is no such kind of code, or the settings exclude each other.
    """
    changes: dict[str, Any] = {name: settings[name] for name in job_settings(advice.job, advice.plan.library)}
    if changes[STACK] != advice.job.stack:
        default = get_library(advice.plan.library).default_attention
        changes["attention"] = default if changes[STACK] == AUTO else "auto"
    job = replace(advice.job, **changes)
    if job == advice.job:
        return advice
    return replace(advice, job=job, estimate=estimate(advice.model, advice.cluster, job, advice.plan))
