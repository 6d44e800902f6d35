"""Repairs of settings that exclude each other: the fewest further changes with which a setting can have its value."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, TypedDict

from smp_advisor.advice.live.controls import controls
from smp_advisor.advice.live.settings import (
    PRECISION,
    STACK,
    job_labels,
    labels_of,
    moved_settings,
    plan_of,
    precisions_for,
    settings_of,
    value_text,
    with_job,
)
from smp_advisor.costs import estimate_many
from smp_advisor.errors import AdvisorError
from smp_advisor.wording import fits, listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from smp_advisor.advice import Advice
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.libraries.library import Setting, Settings
    from smp_advisor.libraries.plan import Plan

    _Candidate = tuple[tuple[str, ...], Settings]  # names of the changed settings, and all settings

__all__ = ["Repair", "RepairData", "repair_data", "repairs"]

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
    advice: Advice
    """The advice with the job of the settings."""
    plan: Plan
    estimate: Estimate


class RepairData(TypedDict):
    """A repair for a view."""

    text: str
    settings: Settings
    effect: str
    """Memory, fit and throughput of its plan next to the present one."""


def repair_data(advice: Advice, base: Settings, name: str, value: Setting, present: Estimate) -> list[RepairData]:
    """The repairs of one move as plain data.

    Parameters
    ----------
    present
        Estimate of the plan of `base`.
    """
    return [
        {"text": repair.text, "settings": repair.settings, "effect": _effect(repair, present)}
        for repair in repairs(advice, base, name, value)
    ]


def repairs(advice: Advice, base: Settings, name: str, value: Setting) -> list[Repair]:
    """Ways in which a setting can have a value that the others exclude, best first; none if there is no such plan.

    One more change is tried first, then another precision and one more change, then two degrees. Plans that fit with
    the required probability come first, then the fastest. Each repair changes other settings than those before it.

    Parameters
    ----------
    base
        Settings that can be combined, before the move.
    """
    target = moved_settings(advice, base, name, value)
    alone: list[_Candidate] = [((), target)]
    single, recast = _single(advice, target, name), _in_other_precision(advice, target, name)
    for candidates in (alone, single, recast, _two_degrees(advice, target, name)):
        results = _evaluated(advice, base, name, value, candidates)
        if results:
            return _best(advice, results)
    return []


def _single(advice: Advice, target: Settings, name: str) -> Iterator[_Candidate]:
    """The settings with one other control at each of its positions. The kind of code is a fact, not a choice."""
    for control in controls(advice, target):
        if control.name not in {name, STACK}:
            for value in control.values:
                if value != target[control.name]:
                    yield (control.name,), moved_settings(advice, target, control.name, value)


def _in_other_precision(advice: Advice, target: Settings, name: str) -> Iterator[_Candidate]:
    """The settings in another precision and with one more change."""
    for precision in precisions_for(advice):
        if PRECISION in target and name != PRECISION and precision != target[PRECISION]:
            for changed, settings in _single(advice, {**target, PRECISION: precision}, name):
                if PRECISION not in changed:
                    yield (*changed, PRECISION), settings


def _two_degrees(advice: Advice, target: Settings, name: str) -> Iterator[_Candidate]:
    """The settings with two other degrees, one of which may be that of sharding."""
    degrees = {control for control in target if control.endswith("_degree") or control == "sharding"}
    for first, settings in _single(advice, target, name):
        if degrees.issuperset(first):
            for second, both in _single(advice, settings, name):
                if degrees.issuperset(second) and second > first:
                    yield (*first, *second), both


def _evaluated(
    advice: Advice, base: Settings, name: str, value: Setting, candidates: Iterable[_Candidate]
) -> list[Repair]:
    """The candidates that can be combined and keep the value, with their estimates."""
    valid: list[tuple[Advice, Plan, tuple[str, ...]]] = []
    jobs: dict[tuple[Setting, ...], Advice] = {}
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
            entries, _estimates(moved, [plan for _, plan, _ in entries]), strict=True
        ):
            settings = settings_of(plan, moved.job)
            if figures is not None and settings[name] == value:
                text = _text(advice.plan.library, base, settings, (*changed, name))
                results.append(
                    Repair(text=text, changed=changed, settings=settings, advice=moved, plan=plan, estimate=figures)
                )
    return results


def _estimates(advice: Advice, plans: Sequence[Plan]) -> list[Estimate | None]:
    """All at once; one by one only if a plan does not suit the cluster, the model or the job."""
    try:
        return [*estimate_many(advice.model, advice.cluster, advice.job, plans)]
    except AdvisorError:
        return [_estimate(advice, plan) for plan in plans]


def _estimate(advice: Advice, plan: Plan) -> Estimate | None:
    try:
        return estimate_many(advice.model, advice.cluster, advice.job, [plan])[0]
    except AdvisorError:
        return None


def _best(advice: Advice, results: list[Repair]) -> list[Repair]:
    """The best repair of each set of changed settings."""
    best: dict[frozenset[str], Repair] = {}
    for repair in sorted(
        results,
        key=lambda repair: (not fits(repair.estimate, advice.min_fit_probability), -repair.estimate.samples_per_second),
    ):
        best.setdefault(frozenset(repair.changed), repair)
    return list(best.values())[:_MOST]


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


def _effect(repair: Repair, present: Estimate) -> str:
    """Memory, fit and throughput of a repair: "26.1 of 38.7 GiB per GPU, fits; throughput −12 %"."""
    after = repair.estimate
    change = 100 * (after.samples_per_second / present.samples_per_second - 1)
    sign = "+" if change > 0 else "\N{MINUS SIGN}"
    speed = "same throughput" if abs(change) < 0.5 else f"throughput {sign}{abs(change):.0f} %"
    likely = fits(after, repair.advice.min_fit_probability)
    fit = "fits" if likely else "at risk" if after.fits else "does not fit"
    return f"{after.needed_gib:.1f} of {after.usable_gpu_memory_gib:.1f} GiB per GPU, {fit}; {speed}"
