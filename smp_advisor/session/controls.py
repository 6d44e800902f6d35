"""The controls of the form."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, cast

from smp_advisor.costs import Estimate, estimate
from smp_advisor.costs.wording import fits
from smp_advisor.errors import AdvisorError
from smp_advisor.libraries.controls import SCHEDULE, Situation, positions
from smp_advisor.libraries.library import Setting, Settings, get_library
from smp_advisor.libraries.schema import schema
from smp_advisor.session.settings import (
    PRECISION,
    STACK,
    job_labels,
    label_of,
    moved_settings,
    plan_fields_of,
    plan_of,
    precisions_for,
    stack_help,
    stack_text,
    stacks_for,
    value_text,
)
from smp_advisor.workload.stack import training_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from smp_advisor.advice.recommendation import Recommendation


_DOUBLINGS = 12
"""Beyond them, memory does not depend on the batch."""
_BEYOND = 2
"""Batch sizes that do not fit and have a position."""


def batch_sizes(advice: Recommendation, settings: Settings, sizes: Sequence[int]) -> list[int]:
    """Return sizes of the batch with the largest that fits, and larger ones up to the second that does not."""
    if not sizes or advice.job.global_batch_size is not None:
        return list(sizes)
    unit, least = int(settings.get("microbatches", 1)), advice.min_fit_probability
    try:
        plan = plan_of(advice, settings)

        def estimated(size: int) -> Estimate:
            return estimate(advice.model, advice.cluster, advice.job, replace(plan, batch_size=size))

        estimates = {size: estimated(size) for size in sizes}
        missing = _BEYOND - sum(not estimates[size].fits for size in sizes[-_BEYOND:])
        # In halves of a doubling.
        for larger in (part * sizes[-1] * 2**power // 2 for power in range(_DOUBLINGS) for part in (3, 4)):
            if missing > 0 and larger % unit == 0:
                estimates[larger] = estimated(larger)
                missing -= not estimates[larger].fits
        # Between the last that fits with the required probability and the next one, by bisection.
        low = max((size for size, value in estimates.items() if fits(value, least)), default=0)
        high = min((size for size in estimates if size > low), default=low) if low else 0
        while high - low >= 2 * unit:
            middle = low + (high - low) // (2 * unit) * unit
            low, high = (middle, high) if fits(estimated(middle), least) else (low, middle)
    except AdvisorError:
        return list(sizes)
    return sorted({*estimates, low} - {0})


BATCH = "batch_size"
_NEXT = 2
"""The value after 1 of every degree and number."""


def why_fixed(advice: Recommendation, settings: Settings, name: str) -> str:
    """Reason why a control of the plan has a single value: the library's own against the next one, as a sentence."""
    total = advice.job.global_batch_size
    if name == BATCH and total is not None:
        return f"The job requires a global batch of {total:,} samples, which decides the batch size."
    if name in SCHEDULE and settings.get("pipeline_parallel_degree") == 1:
        return "Only with pipeline stages."
    try:
        plan = plan_of(advice, moved_settings(advice, settings, name, _NEXT))
        estimate(advice.model, advice.cluster, advice.job, plan)
    except AdvisorError as error:
        what, _, _ = str(error).rpartition(": ")  # the remedy is the present value
        return f"{what}." if what else str(error)
    return "No other value with these settings."


Kind = Literal["slider", "select", "checkbox"]

_KINDS: dict[str, Kind] = {
    "sharding": "select",
    "activation_checkpointing": "select",
    "offload_activations": "checkbox",
    "pipeline": "select",
    "sharding_strategy": "select",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Control:
    """One control with its values."""

    name: str
    label: str
    kind: Kind
    values: tuple[Setting, ...]
    """In the order of the slider. The current value is one of them."""
    texts: tuple[str, ...]
    help: str
    """Tooltip: purpose and cost from the library's schema, then the parameters that it sets."""
    fixed_because: str = ""
    """Reason for a single value, as a sentence; empty if there are several."""


def controls(advice: Recommendation, settings: Settings) -> list[Control]:
    """Return every control with its values, while the others are fixed."""
    situation = Situation(
        plan=advice.plan,
        fields=plan_fields_of(advice, settings),
        model=advice.model,
        cluster=advice.cluster,
        job=advice.job,
    )
    of_plan = [_of_plan(advice, settings, name, values) for name, values in positions(situation).items()]
    of_job = [_of_job(advice, name, label, settings[name]) for name, label in job_labels(advice.plan.library).items()]
    return [*of_plan, *of_job]


def _of_job(advice: Recommendation, name: str, label: str, current: Setting) -> Control:
    """Return a control of the job: the kind of code is a fact, precision and the training settings are choices."""
    library, choices, reason = advice.plan.library, list[Setting](), ""
    if name == STACK:
        choices, about = [*stacks_for(advice)], stack_help(str(current), library)
    elif name == PRECISION:
        choices = [*precisions_for(advice)]
        about = (
            "Precision of the training step. bf16 has the range of fp32; fp16 needs loss scaling; fp32 is slower and"
            " needs more memory. Setting of the job: precision."
        )
        reason = f"The library trains in {current} only on this instance." * ({*choices} == {current})
    else:
        setting = training_settings()[name]
        choices, about = [*(setting.values or (False, True))], f"{setting.help} Setting of the job: {name}."
    values = tuple(dict.fromkeys([*choices, current]))
    return Control(
        name=name,
        label=label,
        kind="checkbox" if False in values else "select",
        values=values,
        texts=tuple(stack_text(str(v), library) if name == STACK else value_text(name, v) for v in values),
        help=about,
        fixed_because=reason,
    )


def _of_plan(advice: Recommendation, settings: Settings, name: str, values: Sequence[Setting]) -> Control:
    """Return a control of the plan. The batch also has sizes that do not fit; a single value has its reason."""
    if name == BATCH:
        values = batch_sizes(advice, settings, cast("Sequence[int]", values))
    control = _control(advice.plan.library, name, values, settings[name])
    if len(control.values) > 1:
        return control
    return replace(control, fixed_because=why_fixed(advice, settings, name))


def _control(library: str, name: str, values: Iterable[Setting], current: Setting) -> Control:
    listed = list(values)
    if current not in listed:  # it has a position even if it is not one of the regular values
        listed.append(current)
        listed = listed if name in _KINDS else sorted(listed, key=lambda value: cast("int", value))
    parameters = list(get_library(library).control_codec.fields({name: current}))
    described = [schema(library).described(parameter) for parameter in parameters]
    names = f"Parameter{'s' if len(parameters) > 1 else ''}: {', '.join(parameters)}."
    return Control(
        name=name,
        label=label_of(library, name),
        kind=_KINDS.get(name, "slider"),
        values=tuple(listed),
        texts=tuple(value_text(name, value) for value in listed),
        help=" ".join([*(parameter.doc for parameter in described if parameter), names]),
    )
