"""Values of the controls, their names and texts, and conversion between them and plans."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smp_advisor.core.files import data_file
from smp_advisor.costs import estimate
from smp_advisor.costs.wording import checkpointing_text
from smp_advisor.errors import AdvisorError, PlanError
from smp_advisor.libraries.controls import completed_settings, dependent_settings, fields_of, with_prescaled_batch
from smp_advisor.libraries.groups import global_batch_size
from smp_advisor.libraries.library import DEFAULT_LIBRARY, Setting, Settings, get_library
from smp_advisor.libraries.schema import schema
from smp_advisor.workload.job import Job
from smp_advisor.workload.stack import AUTO, stack, stacks, training_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.advice.recommendation import Recommendation
    from smp_advisor.libraries.plan import Plan

STACK = "stack"
PRECISION = "precision"


def job_labels(library: str) -> Mapping[str, str]:
    """Return labels of the controls, by field of the job."""
    supported = get_library(library).training_settings
    own = {name: setting.title for name, setting in training_settings().items() if name in supported}
    in_plan = {PRECISION: "Precision"} if get_library(library).plan.precision_fields("bf16") else {}
    return {STACK: "Code", **in_plan, **own}


def job_settings(job: Job, library: str) -> Settings:
    """Return values of the controls."""
    return {name: getattr(job, name) for name in job_labels(library)}


def stacks_for(advice: Recommendation) -> list[str]:
    """Return the kinds of code that the library's framework can run, the exported script first."""
    of_framework = get_library(advice.plan.library).stack
    tensorflow = of_framework == "tensorflow"
    names = [name for name in stacks() if (name == "tensorflow") == tensorflow]
    return [AUTO, *names]


def precisions_for(advice: Recommendation) -> list[str]:
    """Precisions in which the library trains on the instance; the job's own only with products in fp8."""
    described = schema(advice.plan.library).setting(PRECISION)
    choices = described.choices if described is not None else ("bf16", "fp16", "fp32")
    if advice.job.fp8:
        return [advice.job.precision]
    return [choice for choice in choices if choice != "bf16" or advice.cluster.instance.bf16]


def stack_text(name: str, library: str) -> str:
    """Return the title of a kind of code. The exported script's is marked as inferred."""
    if name == AUTO:
        return f"exported script (inferred): {stack(get_library(library).stack).title}"
    return stack(name).title


def stack_help(name: str, library: str) -> str:
    """Tooltip: the selected kind of code, and the setting of the job."""
    summary = stack(get_library(library).stack if name == AUTO else name).summary
    return f"Kind of training code, which decides kernels and launches. {summary} Setting of the job: stack."


def with_job(advice: Recommendation, settings: Settings) -> Recommendation:
    """Return the advice with other settings of the job. Its plan is estimated again, not chosen again."""
    changes: dict[str, Any] = {name: settings[name] for name in job_settings(advice.job, advice.plan.library)}
    if changes[STACK] != advice.job.stack:
        default = get_library(advice.plan.library).default_attention
        changes["attention"] = default if changes[STACK] == AUTO else "auto"
    job = replace(advice.job, **changes)
    if job == advice.job:
        return advice
    record, precision = get_library(advice.plan.library), advice.plan.precision_fields(job.precision)
    try:
        plan = replace(advice.plan, **precision)
        value = estimate(advice.model, advice.cluster, job, plan)
    except AdvisorError:  # the job excludes this plan: another one has the values of the controls
        of_plan = {name: value for name, value in settings.items() if name in record.controls}
        changed = {**fields_of(advice.plan), **record.control_codec.fields(of_plan), **precision}
        plan = replace(advice.plan, **completed_settings(advice.plan, changed, advice.cluster))
        value = estimate(advice.model, advice.cluster, job, plan)
    return replace(advice, job=job, plan=plan, estimate=value, steps=())


def labels_of(library: str) -> Mapping[str, str]:
    """Return labels of a library's controls, by setting."""
    return {name: label_of(library, name) for name in names_of(library)}


def rows_of(library: str) -> Mapping[str, str]:
    """Return labels of the rows of a plan's configuration, by setting."""
    return {**labels_of(library), "global_batch": "Global batch"}


def value_text(name: str, value: Setting) -> str:
    """Return the text of a setting's value."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int):
        return f"{value:,}"
    if name == "sharding":
        texts = {"none": "none", "optimizer_state": "optimizer state"}
        return texts.get(value) or f"full, over {value.removeprefix('sharded_')} GPUs"
    if name == "sharding_strategy":
        return str(data_file("session", "words")["sharding_strategy"].get(value, value))
    return checkpointing_text(value) if name == "activation_checkpointing" else value


def with_labels(library: str, text: str) -> str:
    """Return a message with the labels of settings instead of their names: ``Batch size must be a multiple of ...``."""
    titles = {setting.key: setting.title for setting in (*schema(library).parameters, *schema(library).settings)}

    def labeled(name: re.Match[str]) -> str:
        return f"{titles[name[1]]}{' = ' if name[2] else ''}" if name[1] in titles else name[0]

    return re.sub(r"\b([a-z]+(?:_[a-z]+)+)\b(=?)", labeled, text)


def configuration(advice: Recommendation, plan: Plan) -> dict[str, str]:
    """Return texts of a plan's configuration by their labels, as `rows_of`; empty if a row does not apply."""
    texts = {
        name: stack_text(str(value), plan.library) if name == STACK else value_text(name, value)
        for name, value in settings_of(plan, advice.job).items()
    }
    if plan.pipeline_parallel_degree == 1:
        texts |= {name: "" for name in ("active_microbatches", "pipeline") if name in texts}
    texts["global_batch"] = f"{global_batch_size(plan, advice.cluster):,}"
    return {label: texts[name] for name, label in rows_of(plan.library).items()}


def dollars(amount: float) -> str:
    """Return an amount in USD: full dollars from 100, else cents or three significant digits."""
    if amount >= 100:
        return f"${amount:,.0f}"
    return f"${amount:.2f}" if amount >= 0.1 else f"${amount:.3g}"


def sign(change: float) -> str:
    """Sign of a change, as texts show it."""
    return "+" if change > 0 else "−"


def throughput_change(before: float, after: float) -> str:
    """Relative change of a rate: "throughput −12 %"."""
    change = 100 * (after / before - 1)
    if abs(change) < 0.05:
        return "no change in throughput"
    size = f"{abs(change):.0f}" if abs(change) >= 9.95 else f"{abs(change):.1f}"
    return f"throughput {sign(change)}{size} %"


_TYPES = {"int": int, "bool": bool, "str": str}


def names_of(library: str) -> tuple[str, ...]:
    """Return names of the controls, in the order of the form: those of the plan, then those of the job."""
    return (*get_library(library).controls, *job_labels(library))


def require_name(name: str, library: str) -> None:
    """Refuse the name of no control."""
    names = names_of(library)
    if name not in names:
        raise PlanError(f"The advisor has no control {name!r}; it has {', '.join(names)}.")


def label_of(library: str, name: str) -> str:
    """Return the label of a control."""
    if name in job_labels(library):
        return job_labels(library)[name]
    described = schema(library).described(name)
    return get_library(library).control_codec.labels.get(name) or (described.title if described else name)


def settings_of(plan: Plan, job: Job | None = None) -> Settings:
    """Return values of the controls for a plan and a job; without a job, its controls have their defaults."""
    record = get_library(plan.library)
    return {
        **record.control_codec.settings(record.controls, fields_of(plan)),
        **job_settings(job or Job(precision=plan.precision, fp8=plan.fp8), plan.library),
    }


def plan_fields_of(advice: Recommendation, settings: Settings) -> dict[str, Any]:
    """Return fields of the plan of these settings. Fields without a control keep the recommended values."""
    library = advice.plan.library
    record, of_job = get_library(library), job_labels(library)
    of_plan = {name: value for name, value in settings.items() if name not in of_job}
    fields = fields_of(advice.plan) | record.control_codec.fields(of_plan)
    if PRECISION in settings:
        fields |= record.plan.precision_fields(str(settings[PRECISION]))
    return with_prescaled_batch(advice.plan, fields, advice.model, advice.job)


def plan_of(advice: Recommendation, settings: Settings) -> Plan:
    """Return the plan of these settings. Fields without a control keep the recommended values."""
    if settings == settings_of(advice.plan, advice.job):
        return advice.plan
    fields = plan_fields_of(advice, settings)
    return dataclasses.replace(advice.plan, **completed_settings(advice.plan, fields, advice.cluster))


def moved_settings(advice: Recommendation, before: Settings, name: str, value: Setting) -> Settings:
    """Return settings after one control moves to `value`. Others change only if they depend on it."""
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
    """Return the same settings, checked to be complete and of the right types."""
    names = names_of(library)
    if not isinstance(value, dict) or set(value) != set(names):
        raise PlanError(f"The advisor's settings must contain each of {', '.join(names)} exactly once.")
    for name, setting in value.items():
        described = None if name in job_labels(library) else schema(library).described(name)
        kind = _TYPES[described.type] if described else type(job_settings(Job(), library).get(name, ""))
        if type(setting) is not kind:
            raise PlanError(f"The advisor's setting {name} must be of type {kind.__name__}, not {setting!r:.80}.")
    if value[STACK] != AUTO:
        stack(value[STACK])
    return value
