"""The controls of the form: positions, reach, and the reason where there is only one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, cast

from smp_advisor.advice.live.settings import (
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
from smp_advisor.costs import estimate, estimate_many
from smp_advisor.errors import AdvisorError
from smp_advisor.libraries.controls import SCHEDULE, Situation, positions
from smp_advisor.libraries.library import get_library
from smp_advisor.libraries.schema import schema
from smp_advisor.wording import fits
from smp_advisor.workload.stack import training_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from smp_advisor.advice import Advice
    from smp_advisor.libraries.library import Setting, Settings
    from smp_advisor.libraries.plan import Plan

__all__ = ["controls"]


_DOUBLINGS = 12
"""Beyond them, memory does not depend on the batch."""
_PARTS = 16
"""Parts of an interval that are tried at once for the largest batch that fits."""
_BEYOND = 2
"""Batch sizes that do not fit and have a position."""


def sizes_beyond(advice: Advice, settings: Settings, sizes: Sequence[int]) -> list[int]:
    """Batch sizes above `sizes`, in halves of a doubling, up to the second that does not fit.

    None if two of `sizes` do not fit, if the job fixes the global batch, or if the settings cannot be combined.
    """
    if not sizes or advice.job.global_batch_size is not None:
        return []
    unit, largest = int(settings.get("microbatches", 1)), sizes[-1]
    try:
        plan = plan_of(advice, settings)
        missing = _BEYOND - _failing(advice, plan, sizes[-_BEYOND:]).count(True)
        larger: list[int] = []
        for power in range(_DOUBLINGS):
            if missing <= 0:
                break
            block = [size for part in (3, 4) if (size := part * largest * 2**power // 2) % unit == 0]
            for size, fails in zip(block, _failing(advice, plan, block), strict=True):
                if missing > 0:
                    larger.append(size)
                missing -= fails
    except AdvisorError:
        return []
    return larger


def largest_that_fits(advice: Advice, settings: Settings, sizes: Sequence[int]) -> list[int]:
    """The largest batch size between two of `sizes` that fits with the required probability, if it is none of them.

    None if the job fixes the global batch, if all or none of `sizes` fit, or if the settings cannot be combined.
    """
    if not sizes or advice.job.global_batch_size is not None:
        return []
    unit = int(settings.get("microbatches", 1))
    try:
        plan = plan_of(advice, settings)
        fitting = _fitting(advice, plan, sizes)
        if all(fitting) or not any(fitting):
            return []
        last = len(fitting) - 1 - fitting[::-1].index(True)
        if last == len(sizes) - 1:
            return []
        # In units. A few at a time: the interval of a doubling is small or large.
        low, high = sizes[last] // unit, sizes[last + 1] // unit
        while high - low > 1:
            between = sorted({low + (high - low) * part // _PARTS for part in range(1, _PARTS)} - {low})
            fits_there = _fitting(advice, plan, [unit * size for size in between])
            low, high = _narrowed(low, high, between, fits_there)
    except AdvisorError:
        return []
    return [] if low * unit == sizes[last] else [low * unit]


def _narrowed(low: int, high: int, between: Sequence[int], fitting: Sequence[bool]) -> tuple[int, int]:
    """The part of an interval in which sizes cease to fit."""
    for size, is_fitting in zip(between, fitting, strict=True):
        if not is_fitting:
            return low, size
        low = size
    return low, high


def _fitting(advice: Advice, plan: Plan, sizes: Sequence[int]) -> list[bool]:
    """Whether each of some batch sizes fits with the required probability."""
    plans = [replace(plan, batch_size=size) for size in sizes]
    estimates = estimate_many(advice.model, advice.cluster, advice.job, plans)
    return [fits(value, advice.min_fit_probability) for value in estimates]


def _failing(advice: Advice, plan: Plan, sizes: Sequence[int]) -> list[bool]:
    """Whether each of some batch sizes does not fit."""
    plans = [replace(plan, batch_size=size) for size in sizes]
    return [not value.fits for value in estimate_many(advice.model, advice.cluster, advice.job, plans)]


BATCH = "batch_size"
_NEXT = 2
"""The value after 1 of every degree and number."""


def why_fixed(advice: Advice, settings: Settings, name: str) -> str:
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
    return "The model, the cluster and the other settings leave one value."


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


def controls(advice: Advice, settings: Settings) -> list[Control]:
    """Every control with its values, while the others are fixed."""
    situation = Situation(
        plan=advice.plan,
        fields=plan_fields_of(advice, settings),
        model=advice.model,
        cluster=advice.cluster,
        job=advice.job,
    )
    library = advice.plan.library
    of_plan = [_of_plan(advice, settings, name, values) for name, values in positions(situation).items()]
    of_job = [_setting(name) for name in job_labels(library) if name not in {STACK, PRECISION}]
    in_precision = [_precision(advice, str(settings[PRECISION]))] if PRECISION in settings else []
    return [*of_plan, _code(advice, str(settings[STACK])), *in_precision, *of_job]


def _of_plan(advice: Advice, settings: Settings, name: str, values: Sequence[Setting]) -> Control:
    """A control of the plan. The batch also has sizes that do not fit; a single value has its reason."""
    if name == BATCH:
        sizes = cast("Sequence[int]", values)
        sizes = [*sizes, *sizes_beyond(advice, settings, sizes)]
        values = sorted([*sizes, *largest_that_fits(advice, settings, sizes)])
    control = _control(advice.plan.library, name, values, settings[name])
    if len(control.values) > 1:
        return control
    return replace(control, fixed_because=why_fixed(advice, settings, name))


def _precision(advice: Advice, current: str) -> Control:
    """The precision of the training step, a setting of the job and of the plan."""
    choices = tuple(dict.fromkeys([*precisions_for(advice), current]))
    return Control(
        name=PRECISION,
        label=job_labels(advice.plan.library)[PRECISION],
        kind="select",
        values=choices,
        texts=choices,
        help="Precision of the training step. bf16 has the range of fp32; fp16 needs loss scaling; fp32 is slower and"
        " needs more memory. Setting of the job: precision.",
        fixed_because=f"The library trains in {current} only on this instance." if len(choices) == 1 else "",
    )


def _code(advice: Advice, current: str) -> Control:
    """The kind of training code, a setting of the job."""
    library = advice.plan.library
    names = list(dict.fromkeys([*stacks_for(advice), current]))
    return Control(
        name=STACK,
        label=job_labels(library)[STACK],
        kind="select",
        values=tuple(names),
        texts=tuple(stack_text(name, library) for name in names),
        help=stack_help(current, library),
    )


def _setting(name: str) -> Control:
    """A setting of the training script."""
    setting = training_settings()[name]
    values: tuple[Setting, ...] = tuple(setting.values) or (False, True)
    return Control(
        name=name,
        label=setting.title,
        kind="select" if setting.values else "checkbox",
        values=values,
        texts=tuple(value_text(name, value) for value in values),
        help=f"{setting.help} Setting of the job: {name}.",
    )


def _control(library: str, name: str, values: Iterable[Setting], current: Setting) -> Control:
    listed = list(values)
    if current not in listed:
        # The current value has a position even if it is not one of the regular values.
        listed = sorted([*listed, current], key=_order) if name not in _KINDS else [*listed, current]
    parameters = list(get_library(library).control_codec.fields({name: current}))
    return Control(
        name=name,
        label=label_of(library, name),
        kind=_KINDS.get(name, "slider"),
        values=tuple(listed),
        texts=tuple(value_text(name, value) for value in listed),
        help=_help(library, parameters),
    )


def _help(library: str, parameters: list[str]) -> str:
    described = [schema(library).described(name) for name in parameters]
    names = f"Parameter{'s' if len(parameters) > 1 else ''}: {', '.join(parameters)}."
    return " ".join([*(parameter.doc for parameter in described if parameter), names])


def _order(value: Setting) -> int:
    return cast("int", value)
