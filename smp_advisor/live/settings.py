"""Values of the controls, and conversion between them and plans."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import PlanError
from smp_advisor.libraries.controls import completed_settings, dependent_settings, fields_of, with_prescaled_batch
from smp_advisor.libraries.library import DEFAULT_LIBRARY, get_library
from smp_advisor.libraries.schema import schema
from smp_advisor.live.job_controls import PRECISION, STACK, job_labels, job_settings
from smp_advisor.workload.job import Job
from smp_advisor.workload.stack import AUTO, require_stack

if TYPE_CHECKING:
    from smp_advisor.advice import Advice
    from smp_advisor.libraries.library import Setting, Settings
    from smp_advisor.libraries.plan import Plan

__all__ = [
    "label_of",
    "moved_settings",
    "names_of",
    "plan_fields_of",
    "plan_of",
    "require_name",
    "require_settings",
    "settings_of",
]

_TYPES = {"int": int, "bool": bool, "str": str}


def names_of(library: str) -> tuple[str, ...]:
    """Names of the controls, in the order of the form: those of the plan, then those of the job."""
    return (*get_library(library).controls, *job_labels(library))


def require_name(name: str, library: str) -> None:
    """Refuse the name of no control.

    Raises
    ------
    PlanError
        The library has no such control.
    """
    names = names_of(library)
    if name not in names:
        raise PlanError(f"The advisor has no control {name!r}; it has {', '.join(names)}.")


def label_of(library: str, name: str) -> str:
    """Label of a control."""
    if name in job_labels(library):
        return job_labels(library)[name]
    codec = get_library(library).control_codec
    described = schema(library).described(codec.described_by(name))
    return codec.label(name) or (described.title if described else name)


def settings_of(plan: Plan, job: Job | None = None) -> Settings:
    """Values of the controls for a plan and a job; without a job, its controls have their defaults."""
    record = get_library(plan.library)
    return {
        **record.control_codec.settings(record.controls, fields_of(plan)),
        **job_settings(job or Job(precision=plan.precision, fp8=plan.fp8), plan.library),
    }


def _of_plan(settings: Settings, library: str) -> Settings:
    return {name: value for name, value in settings.items() if name not in job_labels(library)}


def plan_fields_of(advice: Advice, settings: Settings) -> dict[str, Any]:
    """Fields of the plan of these settings. Fields without a control keep the recommended values."""
    library = advice.plan.library
    record = get_library(library)
    fields = fields_of(advice.plan) | record.control_codec.fields(_of_plan(settings, library))
    if PRECISION in settings:
        fields |= record.plan.precision_fields(str(settings[PRECISION]))
    return with_prescaled_batch(advice.plan, fields, advice.model, advice.job)


def plan_of(advice: Advice, settings: Settings) -> Plan:
    """The plan of these settings. Fields without a control keep the recommended values.

    Raises
    ------
    PlanError
        The settings exclude each other.
    """
    if settings == settings_of(advice.plan, advice.job):
        return advice.plan
    fields = plan_fields_of(advice, settings)
    return dataclasses.replace(advice.plan, **completed_settings(advice.plan, fields, advice.cluster))


def moved_settings(advice: Advice, before: Settings, name: str, value: Setting) -> Settings:
    """Settings after one control moves to `value`. Others change only if they depend on it."""
    if name in job_labels(advice.plan.library):
        return {**before, name: value}
    record = get_library(advice.plan.library)
    changes = record.control_codec.fields({name: value})
    after = dependent_settings(
        advice.plan,
        plan_fields_of(advice, before),
        changes,
        model=advice.model,
        job=advice.job,
        cluster=advice.cluster,
        global_batch_size=advice.job.global_batch_size,
    )
    jobs = {control: before[control] for control in job_labels(advice.plan.library)}
    return {**record.control_codec.settings(record.controls, after.settings), **jobs, name: value}


def require_settings(value: object, library: str = DEFAULT_LIBRARY) -> Settings:
    """The same settings, checked to be complete and of the right types.

    Raises
    ------
    AdvisorError
        One is missing, unknown, or has the wrong type, or there is no such kind of code.
    """
    names = names_of(library)
    if not isinstance(value, dict) or set(value) != set(names):
        raise PlanError(f"The advisor's settings must contain each of {', '.join(names)} exactly once.")
    for name, setting in value.items():
        described = None if name in job_labels(library) else schema(library).described(name)
        kind = _TYPES[described.type] if described else type(job_settings(Job(), library).get(name, ""))
        if type(setting) is not kind:
            raise PlanError(f"The advisor's setting {name} must be of type {kind.__name__}, not {setting!r:.80}.")
    if value[STACK] != AUTO:
        require_stack(value[STACK])
    return value
