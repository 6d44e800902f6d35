"""The controls of the form, and repairs of settings that exclude each other."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from smp_advisor.costs import Estimate, estimate
from smp_advisor.costs.wording import fits, listed
from smp_advisor.errors import AdvisorError
from smp_advisor.libraries.controls import SCHEDULE, Situation, positions
from smp_advisor.libraries.library import Setting, Settings, get_library
from smp_advisor.libraries.schema import schema
from smp_advisor.session.control_state import ControlState, tried
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
)
from smp_advisor.workload.stack import training_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from smp_advisor.advice.recommendation import Recommendation

    _Candidate = tuple[tuple[str, ...], Settings]  # names of the changed settings, and all settings


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


_MOST = 3
_FOLLOWERS = frozenset({"active_microbatches", "pipeline"})
"""Settings of the pipeline's schedule, which no repair names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Repair:
    """Settings with the requested value that can be combined."""

    text: str
    """The changes as an instruction: "Turn sharding off and use pipeline parallel degree 2"."""
    changed: tuple[str, ...]
    """Names of the settings that change besides the requested one. Others may follow from them."""
    state: ControlState

    def effect(self, present: Estimate) -> str:
        """Return memory, fit and throughput: "26.1 of 38.7 GiB per GPU, fits; throughput −12 %"."""
        after = self.state.estimate
        speed = throughput_change(present.samples_per_second, after.samples_per_second)
        likely = fits(after, self.state.advice.min_fit_probability)
        fit = "fits" if likely else "at risk" if after.fits else "does not fit"
        return f"{after.needed_gib:.1f} of {after.usable_gpu_memory_gib:.1f} GiB per GPU, {fit}; {speed}"


def repairs_of(state: ControlState) -> list[dict[str, Any]]:
    """Return the repairs for the setting that moved last, for a view; none if the settings can be combined."""
    if not state.problem or not state.moved:
        return []
    base, value = settings_of(state.plan, state.advice.job), state.settings[state.moved]
    return [
        {"text": repair.text, "settings": repair.state.settings, "effect": repair.effect(state.estimate)}
        for repair in repairs(state.advice, base, state.moved, value)
    ]


def repairs(advice: Recommendation, base: Settings, name: str, value: Setting) -> list[Repair]:
    """Ways in which a setting can have a value that the others exclude, best first; none if there is no such plan."""
    target, least = moved_settings(advice, base, name, value), advice.min_fit_probability
    alone: list[_Candidate] = [((), target)]
    single, recast = _single(advice, target, name), _in_other_precision(advice, target, name)
    for candidates in (alone, single, recast, _two_degrees(advice, target, name)):
        offers: list[Repair] = []
        for changed, settings in candidates:
            with suppress(AdvisorError):  # another combination that is excluded
                state = tried(advice, settings)
                if state.settings[name] == value:
                    text = _text(advice.plan.library, base, state.settings, (*changed, name))
                    offers.append(Repair(text=text, changed=changed, state=state))
        if offers:
            offers.sort(key=lambda of: (not fits(of.state.estimate, least), -of.state.estimate.samples_per_second))
            best: dict[frozenset[str], Repair] = {}
            for repair in offers:
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
