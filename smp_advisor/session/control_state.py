"""Changes of the plan on screen: moves of controls in one sentence, their history, and searches of changed requests."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from smp_advisor.advice.recommendation import Recommendation, recommend
from smp_advisor.advice.request import JOB_FIELDS
from smp_advisor.core.files import data_file
from smp_advisor.costs import Estimate, estimate
from smp_advisor.costs.wording import adapter_text, listed
from smp_advisor.errors import AdvisorError, PlanError
from smp_advisor.libraries.library import Setting, Settings, get_library, plan_fields
from smp_advisor.libraries.validation import check_against
from smp_advisor.session.cells import scripted
from smp_advisor.session.controls import effect_of, repairs
from smp_advisor.session.settings import (
    configuration,
    job_labels,
    label_of,
    labels_of,
    moved_settings,
    names_of,
    plan_of,
    require_name,
    rows_of,
    settings_of,
    sign,
    throughput_change,
    value_text,
    with_job,
)
from smp_advisor.workload import Adapter, format_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smp_advisor.libraries.plan import Plan


@dataclasses.dataclass(frozen=True, kw_only=True)
class ControlState:
    """Values of the controls, with the plan that they make and its estimate."""

    advice: Recommendation
    settings: Settings
    """Values of the controls, whether they can be combined or not."""
    plan: Plan
    """Plan of the settings; the last valid one while they cannot be combined."""
    estimate: Estimate
    moved: str = ""
    problem: str = ""
    """Reason why the settings cannot be combined; empty if they can."""
    summary: str = ""
    """Summary of the last change."""

    @property
    def valid_settings(self) -> Settings:
        """The settings, or the last ones that could be combined."""
        return settings_of(self.plan, self.advice.job) if self.problem else self.settings

    def is_at(self, state: ControlState) -> bool:
        """Return whether both are the same plan and job."""
        return self.settings == state.settings and self.plan == state.plan and self.advice.job == state.advice.job


def recommended(advice: Recommendation) -> ControlState:
    """Return the controls at the recommendation."""
    return _at(advice, advice.plan, advice.estimate)


def move(state: ControlState, name: str, value: Setting) -> ControlState:
    """Move one control, and the settings that depend on it."""
    require_name(name, state.advice.plan.library)
    return apply(state, moved_settings(state.advice, state.settings, name, value), moved=name)


def apply(state: ControlState, settings: Settings, *, moved: str = "") -> ControlState:
    """Set all controls at once."""
    try:
        advice = with_job(state.advice, settings)
        plan = plan_of(advice, settings)
        value = advice.estimate if plan == advice.plan else _estimate(advice, plan)
    except AdvisorError as error:
        return dataclasses.replace(state, settings=settings, moved=moved, problem=str(error), summary="")
    return summarized(state, _at(advice, plan, value), moved)


def adopt(state: ControlState, plan: Plan) -> ControlState:
    """Show a plan, whose fields without a control stay when controls move."""
    advice = state.advice
    if plan.library != advice.plan.library:
        raise PlanError(
            f"The plan is one of {get_library(plan.library).title}, and the advice is for"
            f" {get_library(advice.plan.library).title}: request advice with library={plan.library!r}."
        )
    check_against(plan, advice.cluster, advice.model, advice.job)
    value = _estimate(advice, plan)
    return summarized(state, _at(dataclasses.replace(advice, plan=plan, estimate=value, steps=()), plan, value))


def summarized(before: ControlState, after: ControlState, moved: str = "") -> ControlState:
    """Return the state after a change, with its summary."""
    library = after.advice.plan.library
    rows, label = list(rows_of(library).values()), labels_of(library).get(moved, "")
    texts = [configuration(state.advice, state.plan) for state in (before, after)]
    summary = describe(rows, texts, before.estimate, after.estimate, moved=label)
    return dataclasses.replace(after, moved=moved, summary=summary)


def describe(
    rows: Sequence[str], texts: Sequence[Sequence[str]], before: Estimate, after: Estimate, *, moved: str
) -> str:
    """Return a change in a sentence: the moved setting, those that follow, memory, speed and fit; empty without one."""
    changes = {
        row: f"{was or 'none'} → {now or 'none'}" for row, was, now in zip(rows, *texts, strict=True) if was != now
    }
    if not changes:
        return ""
    first = f"{moved} {changes.pop(moved)}" if moved in changes else ""
    dependents = ", ".join(f"{row[:1].lower()}{row[1:]} {change}" for row, change in changes.items())
    subject = f"{first} ({dependents})" if first and dependents else first or (dependents[:1].upper() + dependents[1:])
    # Rounded like the figures of the views.
    needed, earlier = round(after.needed_gib, 3), round(before.needed_gib, 3)
    change = needed - earlier
    memory = "no change in memory" if abs(change) < 0.05 else f"memory {sign(change)}{abs(change):.1f} GiB per GPU"
    memory += f" ({needed:.1f} of {after.usable_gpu_memory_gib:.1f} GiB)"
    # A plan that cannot run has no speed.
    rates = [float(f"{value.samples_per_second:.6g}") for value in (before, after)]
    speed = f", {throughput_change(*rates)}" if before.fits and after.fits else ""
    fit = "now fits" if after.fits else "no longer fits" if before.fits else "still does not fit"
    return f"{subject}: {memory}{speed}{'' if before.fits and after.fits else f'; {fit}'}."


def _at(advice: Recommendation, plan: Plan, value: Estimate) -> ControlState:
    return ControlState(advice=advice, settings=settings_of(plan, advice.job), plan=plan, estimate=value)


def repairs_of(state: ControlState) -> list[dict[str, Any]]:
    """Ways to combine the setting that moved last with the plan, for a view; none if the settings can be combined."""
    if not state.problem or not state.moved:
        return []
    base, value = settings_of(state.plan, state.advice.job), state.settings[state.moved]
    return [
        {"text": repair.text, "settings": repair.settings, "effect": effect_of(repair, state.estimate)}
        for repair in repairs(state.advice, base, state.moved, value)
    ]


def require(state: ControlState) -> ControlState:
    """Return the same state, if its settings can be combined."""
    if state.problem:
        raise PlanError(state.problem)
    return state


def _estimate(advice: Recommendation, plan: Plan) -> Estimate:
    return estimate(advice.model, advice.cluster, advice.job, plan)


LONGEST = 200
"""Number of plans in a history. The oldest is dropped first."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A plan that was on screen."""

    recommended: Recommendation
    """The recommendation at that time, which another workload replaces."""
    state: ControlState
    """Values of the controls, which can be combined."""
    summary: str
    """The change that led to the plan, with its effect."""
    gesture: str = ""
    """Gesture of a view, such as the drag of a slider, whose moves are one entry; empty for a change from Python."""

    def shows(self, entry: Entry) -> bool:
        """Return whether both are the same plan of the same recommendation."""
        return self.recommended is entry.recommended and self.state.is_at(entry.state)


@dataclass(frozen=True, kw_only=True)
class History:
    """Entries in order, and the position of the plan on screen. At least one entry."""

    entries: tuple[Entry, ...]
    position: int = 0

    @property
    def current(self) -> Entry:
        """The entry at the position."""
        return self.entries[self.position]

    def entered(self, entry: Entry) -> History:
        """Return the history with a new last entry."""
        before = self.entries[: self.position + 1]  # another plan than the undone ones replaces them
        is_same_drag = len(before) > 1 and entry.gesture and entry.gesture == self.current.gesture
        if is_same_drag:
            before = before[:-1]  # a drag is one entry: its last plan
        if before[-1].shows(entry):
            # Nothing changed, unless a drag came back to where it began: then it leaves no entry.
            return replace(self, entries=before, position=len(before) - 1) if is_same_drag else self
        entries = (*before, entry)[-LONGEST:]
        return replace(self, entries=entries, position=len(entries) - 1)

    def moved(self, steps: int) -> History:
        """Return the history at another position; the nearest one that exists."""
        return replace(self, position=min(max(self.position + steps, 0), len(self.entries) - 1))


def changed(
    advice: Recommendation, changes: Mapping[str, Any], pins: Settings | None = None, **progress: Any
) -> Recommendation:
    """The advice for a changed request. Everything else of the request stays, and the pinned settings of the plan."""
    request = advice.request
    if pins is not None:
        # Fields with the values of pinned controls, as far as a library has them, instead of the fixed ones.
        target = str(changes.get("library", request.library) or "auto")
        library = advice.plan.library
        own = set(fields_of_pins(library, settings_of(advice.plan, advice.job))) - JOB_FIELDS
        possible = JOB_FIELDS | plan_fields(library if target == "auto" else target)
        fixed = {name: value for name, value in fields_of_pins(library, pins).items() if name in possible}
        free = {name: value for name, value in request.pins.items() if name not in own}
        request = replace(request, pins=free).changed(**fixed)
    return recommend(request.changed(**changes), **progress)


def pins_of(advice: Recommendation) -> tuple[str, ...]:
    """Return controls of the plan whose values the request fixes. Settings of its job are part of the request."""
    library = advice.plan.library
    codec, controls = get_library(library).control_codec, get_library(library).controls
    values = settings_of(advice.plan, advice.job)
    return tuple(name for name in controls if set(codec.fields({name: values[name]})) & advice.request.pins.keys())


def fields_of_pins(library: str, pins: Mapping[str, Any]) -> dict[str, Any]:
    """Return keywords of `advise` that fix the values of controls: fields of the plan and of the job."""
    codec, controls = get_library(library).control_codec, get_library(library).controls
    of_plan = codec.fields({name: value for name, value in pins.items() if name in controls})
    return {**of_plan, **{name: value for name, value in pins.items() if name in job_labels(library)}}


@dataclass(frozen=True, kw_only=True)
class SearchAgain:
    """A changed request: prepared at once, searched in any thread."""

    advice: Recommendation
    """The present recommendation."""
    changes: Mapping[str, Any]
    """Keywords of `advise` with their new values; None removes a setting."""
    pins: Settings
    """Values of the pinned settings."""

    def run(self, **progress: Any) -> Recommendation:
        """Return the new recommendation. ``on_progress`` is that of `advise`."""
        return scripted(changed(self.advice, self.changes, self.pins, **progress))

    def summary(self, after: Recommendation) -> str:
        """Return the change with its effect: "Instance count 16 → 8: 26.1 of 39.4 GiB per GPU, throughput −48 %"."""
        words = data_file("session", "words")["request"]
        texts = [
            f"{words.get(name, name.replace('_', ' '))} {_text(self._before(name))} → {_text(value)}"
            for name, value in self.changes.items()
        ]
        lost = [name for name in self.pins if name not in names_of(after.plan.library)]
        pinned = [
            f"{label_of(after.plan.library, name).lower()} {value_text(name, value)}"
            for name, value in self.pins.items()
            if name not in lost
        ]
        texts += [f"searched with {listed(pinned)} pinned"] if pinned else ([] if texts else ["Searched again"])
        labels = [label_of(self.advice.plan.library, name).lower() for name in lost]
        texts += [f"no longer pinned: {listed(labels)}, which {after.plan.library} does not have"] if lost else []
        text = ", ".join(texts)
        now, before = after.estimate, self.advice.estimate
        memory = f"{now.needed_gib:.1f} of {now.usable_gpu_memory_gib:.1f} GiB per GPU"
        speed = throughput_change(before.samples_per_second, now.samples_per_second)
        if after.model.reads_tokens and self.advice.model.reads_tokens:
            speed = throughput_change(before.tokens_per_second, now.tokens_per_second)
        return f"{text[:1].upper()}{text[1:]}: {memory}, {speed}."

    def _before(self, name: str) -> Any:
        if name == "instance_count":
            return self.advice.cluster.nodes
        if name == "cluster":
            return self.advice.cluster.instance.name
        request = self.advice.request
        parts: tuple[Any, ...] = (request.pins, request.shape, vars(request))
        value = next((part[name] for part in parts if part.get(name) is not None), None)
        return getattr(self.advice.job, name, None) if value is None else value


def _text(value: object) -> str:
    if value is None:
        return "not set"
    if isinstance(value, Adapter):
        return adapter_text(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(getattr(value, "name", value))
    if value >= 1e6:
        return format_count(value).replace(" ", "")
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}"
