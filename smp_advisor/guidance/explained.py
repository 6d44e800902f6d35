"""The explanation of any plan of an advice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.costs import estimate
from smp_advisor.errors import PlanError
from smp_advisor.guidance.explanation import steps_of
from smp_advisor.guidance.ladder import climb, unused_techniques
from smp_advisor.guidance.planned_run import PlannedRun
from smp_advisor.guidance.rank_map import RankTable
from smp_advisor.libraries.check import check_against
from smp_advisor.libraries.ranks import rank_map
from smp_advisor.search.alternatives import listed_plans

if TYPE_CHECKING:
    from smp_advisor.advice import Advice
    from smp_advisor.guidance.ladder import Ladder
    from smp_advisor.libraries.plan import Plan

__all__ = ["ladder_of", "plan_of", "ranks_of"]


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
    return climb(run, advice.steps if own else steps_of(run, unused_techniques(run)))


def ranks_of(advice: Advice, plan: Plan | int | None, placement_strategy: str | None) -> RankTable:
    """The rank map of a plan, see `plan_of`."""
    return RankTable(ranks=rank_map(plan_of(advice, plan), advice.cluster, placement_strategy))
