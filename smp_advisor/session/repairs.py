"""Repairs of settings that exclude each other: the changes that let the setting that moved last keep its value."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smp_advisor.costs.wording import fits, listed
from smp_advisor.errors import AdvisorError
from smp_advisor.session.control_state import ControlState, tried
from smp_advisor.session.controls import controls
from smp_advisor.session.settings import (
    PRECISION,
    STACK,
    labels_of,
    moved_settings,
    precisions_for,
    settings_of,
    throughput_change,
    value_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.advice.recommendation import Recommendation
    from smp_advisor.costs import Estimate
    from smp_advisor.libraries.library import Setting, Settings

    _Candidate = tuple[tuple[str, ...], Settings]  # names of the changed settings, and all settings


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
