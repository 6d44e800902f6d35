"""The controls of the form, and repairs of settings that exclude each other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Literal, cast

from smp_advisor.costs import Estimate, estimate
from smp_advisor.costs.wording import fits, listed
from smp_advisor.errors import AdvisorError
from smp_advisor.libraries.controls import SCHEDULE, Situation, positions
from smp_advisor.libraries.library import Setting, Settings, get_library
from smp_advisor.libraries.schema import schema
from smp_advisor.session.settings import (
    PRECISION,
    STACK,
    job_labels,
    label_of,
    labels_of,
    moved_settings,
    plan_fields_of,
    plan_of,
    precisions_for,
    settings_of,
    stack_help,
    stack_text,
    stacks_for,
    throughput_change,
    value_text,
    with_job,
)
from smp_advisor.workload.stack import training_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from smp_advisor.advice.recommendation import Recommendation
    from smp_advisor.libraries.plan import Plan

    _Candidate = tuple[tuple[str, ...], Settings]  # names of the changed settings, and all settings


_DOUBLINGS = 12
"""Beyond them, memory does not depend on the batch."""
_PARTS = 16
"""Parts of an interval that are tried at once for the largest batch that fits."""
_BEYOND = 2
"""Batch sizes that do not fit and have a position."""


def sizes_beyond(advice: Recommendation, settings: Settings, sizes: Sequence[int]) -> list[int]:
    """Batch sizes above `sizes`, in halves of a doubling, up to the second that does not fit."""
    if not sizes or advice.job.global_batch_size is not None:
        return []
    unit, largest = int(settings.get("microbatches", 1)), sizes[-1]
    try:
        plan = plan_of(advice, settings)
        missing = _BEYOND - _fitting(advice, plan, sizes[-_BEYOND:]).count(False)
        larger: list[int] = []
        for power in range(_DOUBLINGS):
            if missing <= 0:
                break
            block = [size for part in (3, 4) if (size := part * largest * 2**power // 2) % unit == 0]
            for size, is_fitting in zip(block, _fitting(advice, plan, block), strict=True):
                if missing > 0:
                    larger.append(size)
                missing -= not is_fitting
    except AdvisorError:
        return []
    return larger


def largest_that_fits(advice: Recommendation, settings: Settings, sizes: Sequence[int]) -> list[int]:
    """The largest batch size between two of `sizes` that fits with the required probability, if it is none of them."""
    if not sizes or advice.job.global_batch_size is not None:
        return []
    unit = int(settings.get("microbatches", 1))
    try:
        plan = plan_of(advice, settings)
        fitting = _fitting(advice, plan, sizes, advice.min_fit_probability)
        if all(fitting) or not any(fitting):
            return []
        last = len(fitting) - 1 - fitting[::-1].index(True)
        if last == len(sizes) - 1:
            return []
        # In units. A few at a time: the interval of a doubling is small or large.
        low, high = sizes[last] // unit, sizes[last + 1] // unit
        while high - low > 1:
            between = sorted({low + (high - low) * part // _PARTS for part in range(1, _PARTS)} - {low})
            fits_there = _fitting(advice, plan, [unit * size for size in between], advice.min_fit_probability)
            for size, is_fitting in zip(between, fits_there, strict=True):
                if not is_fitting:
                    high = size
                    break
                low = size
    except AdvisorError:
        return []
    return [] if low * unit == sizes[last] else [low * unit]


def estimates_of(advice: Recommendation, plans: Sequence[Plan]) -> list[Estimate | AdvisorError]:
    """Return the estimate of each plan, or why it does not suit cluster, model or job."""
    results: list[Estimate | AdvisorError] = []
    for plan in plans:
        try:
            results.append(estimate(advice.model, advice.cluster, advice.job, plan))
        except AdvisorError as error:
            results.append(error)
    return results


def _fitting(advice: Recommendation, plan: Plan, sizes: Sequence[int], least: float | None = None) -> list[bool]:
    """Return whether each of some batch sizes fits, with a probability if one is required."""
    plans = (replace(plan, batch_size=size) for size in sizes)
    estimates = [estimate(advice.model, advice.cluster, advice.job, changed) for changed in plans]
    return [value.fits if least is None else fits(value, least) for value in estimates]


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
        sizes = cast("Sequence[int]", values)
        sizes = [*sizes, *sizes_beyond(advice, settings, sizes)]
        values = sorted([*sizes, *largest_that_fits(advice, settings, sizes)])
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


_MOST = 3
_FOLLOWERS = frozenset({"active_microbatches", "pipeline"})
"""Settings of the pipeline's schedule, which no repair names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Repair:
    """Settings with the requested value that can be combined, and their plan."""

    text: str
    """The changes as an instruction: "Turn sharding off and use pipeline parallel degree 2"."""
    changed: tuple[str, ...]
    """Names of the settings that change besides the requested one. Others may follow from them."""
    settings: Settings
    advice: Recommendation
    """The advice with the job of the settings."""
    plan: Plan
    estimate: Estimate


def repairs(advice: Recommendation, base: Settings, name: str, value: Setting) -> list[Repair]:
    """Ways in which a setting can have a value that the others exclude, best first; none if there is no such plan."""
    target = moved_settings(advice, base, name, value)
    alone: list[_Candidate] = [((), target)]
    single, recast = _single(advice, target, name), _in_other_precision(advice, target, name)
    for candidates in (alone, single, recast, _two_degrees(advice, target, name)):
        if results := _evaluated(advice, base, name, value, candidates):
            least, best = advice.min_fit_probability, dict[frozenset[str], Repair]()
            for repair in sorted(
                results, key=lambda of: (not fits(of.estimate, least), -of.estimate.samples_per_second)
            ):
                best.setdefault(frozenset(repair.changed), repair)
            return list(best.values())[:_MOST]
    return []


def _single(advice: Recommendation, target: Settings, name: str) -> Iterator[_Candidate]:
    """Yield the settings with one other control at each of its positions. The kind of code is a fact, not a choice."""
    for control in controls(advice, target):
        if control.name not in {name, STACK}:
            for value in control.values:
                if value != target[control.name]:
                    yield (control.name,), moved_settings(advice, target, control.name, value)


def _in_other_precision(advice: Recommendation, target: Settings, name: str) -> Iterator[_Candidate]:
    """Yield the settings in another precision and with one more change."""
    for precision in precisions_for(advice):
        if PRECISION in target and name != PRECISION and precision != target[PRECISION]:
            for changed, settings in _single(advice, {**target, PRECISION: precision}, name):
                if PRECISION not in changed:
                    yield (*changed, PRECISION), settings


def _two_degrees(advice: Recommendation, target: Settings, name: str) -> Iterator[_Candidate]:
    """Yield the settings with two other degrees, one of which may be that of sharding."""
    degrees = {control for control in target if control.endswith("_degree") or control == "sharding"}
    for first, settings in _single(advice, target, name):
        if degrees.issuperset(first):
            for second, both in _single(advice, settings, name):
                if degrees.issuperset(second) and second > first:
                    yield (*first, *second), both


def _evaluated(
    advice: Recommendation, base: Settings, name: str, value: Setting, candidates: Iterable[_Candidate]
) -> list[Repair]:
    """Return the candidates that can be combined and keep the value, with their estimates."""
    valid: list[tuple[Recommendation, Plan, tuple[str, ...]]] = []
    jobs: dict[tuple[Setting, ...], Recommendation] = {}
    for changed, settings in candidates:
        key = tuple(settings[label] for label in job_labels(advice.plan.library))
        try:
            if key not in jobs:
                jobs[key] = with_job(advice, settings)
            valid.append((jobs[key], plan_of(jobs[key], settings), changed))
        except AdvisorError:
            continue
    results: list[Repair] = []
    for _, group in groupby(valid, key=lambda entry: id(entry[0])):
        entries = list(group)
        moved = entries[0][0]
        for (_, plan, changed), figures in zip(
            entries, estimates_of(moved, [plan for _, plan, _ in entries]), strict=True
        ):
            settings = settings_of(plan, moved.job)
            if not isinstance(figures, AdvisorError) and settings[name] == value:
                text = _text(advice.plan.library, base, settings, (*changed, name))
                results.append(
                    Repair(text=text, changed=changed, settings=settings, advice=moved, plan=plan, estimate=figures)
                )
    return results


def _text(library: str, base: Settings, after: Settings, changed: tuple[str, ...]) -> str:
    """The changes as an instruction that ends with the requested setting, and the settings that follow from them."""
    labels = {name: f"{label[:1].lower()}{label[1:]}" for name, label in labels_of(library).items()}
    values = {name: value_text(name, value) for name, value in after.items()}
    verbs = [verb for name in changed if (verb := _verb(labels[name], name, after[name]))]
    used = [f"{labels[name]} {values[name]}" for name in changed if not _verb(labels[name], name, after[name])]
    text = listed([*verbs, *([f"use {listed(used)}"] if used else [])])
    follow = [
        name for name in after if after[name] != base.get(name) and name not in _FOLLOWERS and name not in changed
    ]
    aside = f" ({', '.join(f'{labels[name]} {values[name]}' for name in follow)})" if follow else ""
    return f"{text[:1].upper()}{text[1:]}{aside}"


def _verb(label: str, name: str, value: Setting) -> str:
    """Instruction for a switch or a precision; empty for a setting with values."""
    if name == PRECISION:
        return f"train in {value}"
    if isinstance(value, bool) or value == "none":
        return f"turn {label} {'on' if value is True else 'off'}"
    return ""


def effect_of(repair: Repair, present: Estimate) -> str:
    """Memory, fit and throughput of a repair: "26.1 of 38.7 GiB per GPU, fits; throughput −12 %"."""
    after = repair.estimate
    speed = throughput_change(present.samples_per_second, after.samples_per_second)
    likely = fits(after, repair.advice.min_fit_probability)
    fit = "fits" if likely else "at risk" if after.fits else "does not fit"
    return f"{after.needed_gib:.1f} of {after.usable_gpu_memory_gib:.1f} GiB per GPU, {fit}; {speed}"
