"""Controls of the training run: the kind of training code. All others belong to the plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from smp_advisor.costs import estimate
from smp_advisor.libraries.registry import get_library
from smp_advisor.workload.stack import AUTO, stack, stacks

if TYPE_CHECKING:
    from smp_advisor.advice import Advice
    from smp_advisor.libraries.control_codec import Settings
    from smp_advisor.workload.job import Job

__all__ = ["JOB_CONTROLS", "STACK", "job_settings", "stack_help", "stack_text", "stacks_for", "with_stack"]

STACK = "stack"
JOB_CONTROLS = {STACK: "Code"}
"""Labels of the controls, by field of the job."""


def job_settings(job: Job) -> Settings:
    """Values of the controls."""
    return {STACK: job.stack}


def stacks_for(advice: Advice) -> list[str]:
    """Kinds of code that the library's framework can run, the exported script first."""
    of_framework = get_library(advice.plan.library).stack
    tensorflow = of_framework == "tensorflow"
    others = [name for name in stacks() if (name == "tensorflow") == tensorflow]
    return [AUTO, *others]


def stack_text(name: str, library: str) -> str:
    """Title of a kind of code. The exported script's is marked as inferred."""
    if name == AUTO:
        return f"exported script (inferred): {stack(get_library(library).stack).title}"
    return stack(name).title


def stack_help(name: str, library: str) -> str:
    """Tooltip: the selected kind of code, and the setting of the job."""
    summary = stack(get_library(library).stack if name == AUTO else name).summary
    return f"Kind of training code, which decides kernels and launches. {summary} Setting of the job: stack."


def with_stack(advice: Advice, name: str) -> Advice:
    """The advice with another kind of code. Its plan is estimated again, not chosen again.

    Raises
    ------
    JobError
        There is no such kind of code.
    """
    if name == advice.job.stack:
        return advice
    attention = get_library(advice.plan.library).default_attention if name == AUTO else "auto"
    job = replace(advice.job, stack=name, attention=attention)
    return replace(advice, job=job, estimate=estimate(advice.model, advice.cluster, job, advice.plan))
