"""State of the controls, independent of any widget: apply a move, refuse invalid settings, summarize the change."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from smp_advisor.costs import estimate
from smp_advisor.errors import AdvisorError, PlanError
from smp_advisor.libraries.check import check_against
from smp_advisor.libraries.library import get_library
from smp_advisor.live.change_summary import Outcome, describe
from smp_advisor.live.job_controls import with_job
from smp_advisor.live.labels import configuration, labels_of, rows_of
from smp_advisor.live.repairs import repair_data
from smp_advisor.live.settings import moved_settings, plan_of, require_name, settings_of

if TYPE_CHECKING:
    from smp_advisor.advice import Advice
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.libraries.library import Setting, Settings
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.live.repairs import RepairData

__all__ = ["ControlState", "adopt", "apply", "move", "recommended", "repairs_of", "require", "summarized"]


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
    def valid_settings(self) -> Settings:
        """The settings, or the last ones that could be combined."""
        return settings_of(self.plan, self.advice.job) if self.problem else self.settings

    @property
    def outcome(self) -> Outcome:
        """The plan for a summary of a change."""
        return Outcome(
            configuration(self.advice, self.plan),
            round(self.estimate.needed_gib, 3),
            float(f"{self.estimate.samples_per_second:.6g}"),
            self.estimate.fits,
        )

    def is_at(self, state: ControlState) -> bool:
        """Whether both are the same plan and job."""
        return self.settings == state.settings and self.plan == state.plan and self.advice.job == state.advice.job


def recommended(advice: Advice) -> ControlState:
    """The controls at the recommendation."""
    value = advice.recommended
    return _at(value, value.plan, value.estimate)


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
    """Show a plan, whose fields without a control stay when controls move.

    Raises
    ------
    PlanError
        The plan does not suit the model, the cluster or the job, or belongs to another library.
    """
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
    """The state after a change, with its summary."""
    library = after.advice.plan.library
    rows, label = list(rows_of(library).values()), labels_of(library).get(moved, "")
    usable = after.estimate.usable_gpu_memory_gib
    summary = describe(rows, before.outcome, after.outcome, moved=label, usable_gib=usable)
    return dataclasses.replace(after, moved=moved, summary=summary)


def _at(advice: Advice, plan: Plan, value: Estimate) -> ControlState:
    return ControlState(advice=advice, settings=settings_of(plan, advice.job), plan=plan, estimate=value)


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
