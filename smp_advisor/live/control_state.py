"""State of the controls, independent of any widget: apply a move, refuse invalid settings, summarize the change."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from smp_advisor.costs import estimate
from smp_advisor.errors import AdvisorError, PlanError
from smp_advisor.live.change_summary import Outcome, describe
from smp_advisor.live.job_controls import with_job
from smp_advisor.live.labels import configuration, labels_of, rows_of
from smp_advisor.live.repairs import repair_data
from smp_advisor.live.settings import moved_settings, names_of, plan_of, settings_of

if TYPE_CHECKING:
    from smp_advisor.advice import Advice
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.libraries.control_codec import Setting, Settings
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.live.repairs import RepairData

__all__ = ["ControlState", "apply", "move", "recommended", "repairs_of", "require"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ControlState:
    """Values of the controls, with the plan that they make and its estimate."""

    advice: Advice
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
    def outcome(self) -> Outcome:
        """The plan for a summary of a change."""
        return Outcome(
            configuration(self.advice, self.plan),
            round(self.estimate.needed_gib, 3),
            float(f"{self.estimate.samples_per_second:.6g}"),
            self.estimate.fits,
        )


def recommended(advice: Advice) -> ControlState:
    """The controls at the recommendation."""
    return ControlState(
        advice=advice, settings=settings_of(advice.plan, advice.job), plan=advice.plan, estimate=advice.estimate
    )


def move(state: ControlState, name: str, value: Setting) -> ControlState:
    """Move one control, and the settings that depend on it."""
    names = names_of(state.advice.plan.library)
    if name not in names:
        raise PlanError(f"The advisor has no control {name!r}; it has {', '.join(names)}.")
    return apply(state, moved_settings(state.advice, state.settings, name, value), moved=name)


def apply(state: ControlState, settings: Settings, *, moved: str = "") -> ControlState:
    """Set all controls at once."""
    try:
        advice = with_job(state.advice, settings)
        plan = plan_of(advice, settings)
        value = advice.estimate if plan == advice.plan else _estimate(advice, plan)
    except AdvisorError as error:
        return dataclasses.replace(state, settings=settings, moved=moved, problem=str(error), summary="")
    after = dataclasses.replace(
        state,
        advice=advice,
        settings=settings_of(plan, advice.job),
        plan=plan,
        estimate=value,
        moved=moved,
        problem="",
        summary="",
    )
    usable = state.estimate.usable_gpu_memory_gib
    library = state.advice.plan.library
    rows, label = list(rows_of(library).values()), labels_of(library).get(moved, "")
    summary = describe(rows, state.outcome, after.outcome, moved=label, usable_gib=usable)
    return dataclasses.replace(after, summary=summary)


def repairs_of(state: ControlState) -> list[RepairData]:
    """Ways to combine the setting that moved last with the plan; none if the settings can be combined."""
    if not state.problem or not state.moved:
        return []
    base = settings_of(state.plan, state.advice.job)
    return repair_data(state.advice, base, state.moved, state.settings[state.moved], state.estimate)


def require(state: ControlState) -> ControlState:
    """The same state, if its settings can be combined.

    Raises
    ------
    PlanError
        They cannot be combined: the setting to change.
    """
    if state.problem:
        raise PlanError(state.problem)
    return state


def _estimate(advice: Advice, plan: Plan) -> Estimate:
    return estimate(advice.model, advice.cluster, advice.job, plan)
