"""The explanation of any plan of an advice."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from smp_advisor.arguments import require_types
from smp_advisor.costs import estimate
from smp_advisor.errors import PlanError
from smp_advisor.guidance.choice import low_utilisation
from smp_advisor.guidance.explanation import explain, steps_of
from smp_advisor.guidance.ladder import climb, unused_techniques
from smp_advisor.guidance.nearest import nearest_reference
from smp_advisor.guidance.pitfalls import pitfalls
from smp_advisor.guidance.planned_run import PlannedRun
from smp_advisor.guidance.rank_map import RankTable
from smp_advisor.libraries.check import check_against
from smp_advisor.libraries.plan import Plan
from smp_advisor.libraries.ranks import rank_map
from smp_advisor.search import listed_plans

if TYPE_CHECKING:
    from smp_advisor.advice import Advice
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.ladder import Ladder
    from smp_advisor.workload.job import Job

__all__ = ["explained", "ladder_of", "plan_of", "ranks_of"]


def explained(advice: Advice, job: Job, plan: Plan, estimate: Estimate, because: str) -> Advice:
    """The advice with another plan instead of the recommended one, and with that plan's own reasons.

    The decision, the alternatives and the comparisons of clusters and libraries stay those of the search. Changes of
    the model are compared with the recommended plan, so they are no steps of another one.

    Parameters
    ----------
    job, plan, estimate
        The training run, the plan and its estimate.
    because
        Origin of the plan, instead of the reasons for the recommended one; empty for the recommended one.
    """
    if plan == advice.plan and job == advice.job:
        return advice
    place, required = advice.cluster, advice.min_fit_probability
    utilisation = low_utilisation(estimate)
    unchanged = tuple(text for text in advice.warnings if text != low_utilisation(advice.estimate))
    return replace(
        advice,
        job=job,
        plan=plan,
        estimate=estimate,
        steps=explain(
            advice.model,
            place,
            job,
            plan,
            estimate,
            min_fit_probability=required,
            objective=advice.objective,
            pins=frozenset(advice.question.request.pins if advice.question is not None else ()),
        ),
        pitfalls=pitfalls(
            advice.model, place, job, plan, script_is_generated=advice.script is None, min_fit_probability=required
        ),
        reference=nearest_reference(
            advice.model, place, job, plan, estimate, min_fit_probability=required, title="The plan on screen"
        ),
        because=because,
        warnings=(*unchanged, utilisation) if utilisation else unchanged,
    )


def plan_of(advice: Advice, plan: Plan | int | None) -> Plan:
    """A plan for the advice's cluster: one of the user's, the row of an alternative, or the recommended one.

    Raises
    ------
    PlanError
        The plan does not suit the model or the cluster, or there is no such row.
    """
    if plan is None or plan == advice.plan:
        return advice.plan
    if isinstance(plan, int):
        plans = listed_plans(advice.result)
        if isinstance(plan, bool) or not 0 <= plan < len(plans):
            raise PlanError(f"The alternatives have the rows 0 to {len(plans) - 1}, not {plan!r}.")
        return plans[plan]
    require_types({"plan": (plan, (Plan, int, type(None)))}, "advice")
    check_against(plan, advice.cluster, advice.model)
    return plan


def ladder_of(advice: Advice, plan: Plan | int | None) -> Ladder:
    """The ladder of a plan, see `plan_of`."""
    chosen = plan_of(advice, plan)
    own = chosen == advice.plan
    run = PlannedRun(
        model=advice.model,
        cluster=advice.cluster,
        job=advice.job,
        plan=chosen,
        estimate=advice.estimate if own else estimate(advice.model, advice.cluster, advice.job, chosen),
        min_fit_probability=advice.min_fit_probability,
        objective=advice.objective,
    )
    return climb(run, advice.steps if own and advice.steps else steps_of(run, unused_techniques(run)))


def ranks_of(advice: Advice, plan: Plan | int | None, placement_strategy: str | None) -> RankTable:
    """The rank map of a plan, see `plan_of`."""
    return RankTable(ranks=rank_map(plan_of(advice, plan), advice.cluster, placement_strategy))
