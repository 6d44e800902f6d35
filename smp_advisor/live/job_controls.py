"""Controls of the training run: the kind of training code, its precision, and settings of the training script."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smp_advisor.costs import estimate
from smp_advisor.errors import AdvisorError
from smp_advisor.libraries.controls import completed_settings, fields_of
from smp_advisor.libraries.library import get_library
from smp_advisor.libraries.schema import schema
from smp_advisor.workload.stack import AUTO, stack, stacks
from smp_advisor.workload.training_settings import training_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.advice import Advice
    from smp_advisor.libraries.library import Settings
    from smp_advisor.workload.job import Job

__all__ = [
    "PRECISION",
    "STACK",
    "job_labels",
    "job_settings",
    "precisions_for",
    "stack_help",
    "stack_text",
    "stacks_for",
    "with_job",
]

STACK = "stack"
PRECISION = "precision"


def job_labels(library: str) -> Mapping[str, str]:
    """Labels of the controls, by field of the job."""
    supported = get_library(library).training_settings
    own = {name: setting.title for name, setting in training_settings().items() if name in supported}
    in_plan = {PRECISION: "Precision"} if get_library(library).plan.precision_fields("bf16") else {}
    return {STACK: "Code", **in_plan, **own}


def job_settings(job: Job, library: str) -> Settings:
    """Values of the controls."""
    return {name: getattr(job, name) for name in job_labels(library)}


def stacks_for(advice: Advice) -> list[str]:
    """Kinds of code that the library's framework can run, the exported script first."""
    of_framework = get_library(advice.plan.library).stack
    tensorflow = of_framework == "tensorflow"
    names = [name for name in stacks() if (name == "tensorflow") == tensorflow]
    return [AUTO, *names]


def precisions_for(advice: Advice) -> list[str]:
    """Precisions in which the library trains on the instance; the job's own only with products in fp8."""
    described = schema(advice.plan.library).setting(PRECISION)
    choices = described.choices if described is not None else ("bf16", "fp16", "fp32")
    if advice.job.fp8:
        return [advice.job.precision]
    return [choice for choice in choices if choice != "bf16" or advice.cluster.instance.bf16]


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
    AdvisorError
        There is no such kind of code, or the settings exclude each other.
    """
    changes: dict[str, Any] = {name: settings[name] for name in job_settings(advice.job, advice.plan.library)}
    if changes[STACK] != advice.job.stack:
        default = get_library(advice.plan.library).default_attention
        changes["attention"] = default if changes[STACK] == AUTO else "auto"
    job = replace(advice.job, **changes)
    if job == advice.job:
        return advice
    return _of_job(advice, settings, job)


def _of_job(advice: Advice, settings: Settings, job: Job) -> Advice:
    """The advice with another job. If that excludes its plan, the plan has the values of the controls."""
    record, precision = get_library(advice.plan.library), advice.plan.precision_fields(job.precision)
    try:
        plan = replace(advice.plan, **precision)
        value = estimate(advice.model, advice.cluster, job, plan)
    except AdvisorError:
        of_plan = {name: value for name, value in settings.items() if name in record.controls}
        changed = {**fields_of(advice.plan), **record.control_codec.fields(of_plan), **precision}
        plan = replace(advice.plan, **completed_settings(advice.plan, changed, advice.cluster))
        value = estimate(advice.model, advice.cluster, job, plan)
    return replace(advice.recommended, job=job, plan=plan, estimate=value, steps=())
