"""Changes of the plan on screen: moves of controls in one sentence, their history, and changed requests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from smp_advisor.advice.recommendation import Recommendation, recommend
from smp_advisor.advice.request import JOB_FIELDS
from smp_advisor.costs import Estimate, estimate
from smp_advisor.errors import AdvisorError, PlanError
from smp_advisor.libraries.library import Setting, Settings, get_library, plan_fields
from smp_advisor.libraries.validation import check_against
from smp_advisor.session.cells import scripted
from smp_advisor.session.settings import (
    configuration,
    job_labels,
    labels_of,
    moved_settings,
    plan_of,
    require_name,
    settings_of,
    sign,
    throughput_change,
    with_job,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.libraries.plan import Plan


@dataclass(frozen=True, kw_only=True)
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
        after = tried(state.advice, settings)
    except AdvisorError as error:
        return replace(state, settings=settings, moved=moved, problem=str(error), summary="")
    return summarized(state, after, moved)


def tried(advice: Recommendation, settings: Settings) -> ControlState:
    """Return the controls at some settings; raises an error if they cannot be combined."""
    advice = with_job(advice, settings)
    plan = plan_of(advice, settings)
    return _at(advice, plan, advice.estimate if plan == advice.plan else _estimate(advice, plan))


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
    return summarized(state, _at(replace(advice, plan=plan, estimate=value, steps=()), plan, value))


def summarized(before: ControlState, after: ControlState, moved: str = "") -> ControlState:
    """Return the state after a change, with its summary."""
    was, now = (configuration(state.advice, state.plan) for state in (before, after))
    label = labels_of(after.advice.plan.library).get(moved, "")
    summary = describe(was, now, before.estimate, after.estimate, moved=label)
    return replace(after, moved=moved, summary=summary)


def describe(
    was: Mapping[str, str], now: Mapping[str, str], before: Estimate, after: Estimate, *, moved: str = ""
) -> str:
    """Return a change in a sentence: the moved setting, those that follow, memory, speed and fit; empty without one."""
    changes = {row: f"{was[row] or 'none'} → {now[row] or 'none'}" for row in now if was[row] != now[row]}
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
    rates = [float(f"{value.tokens_per_second:.6g}") for value in (before, after)]
    speed = f", {throughput_change(*rates)}" if before.fits and after.fits else ""
    fit = "now fits" if after.fits else "no longer fits" if before.fits else "still does not fit"
    return f"{subject}: {memory}{speed}{'' if before.fits and after.fits else f'; {fit}'}."


def _at(advice: Recommendation, plan: Plan, value: Estimate) -> ControlState:
    return ControlState(advice=advice, settings=settings_of(plan, advice.job), plan=plan, estimate=value)


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
    return scripted(recommend(request.changed(**changes), **progress))


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
