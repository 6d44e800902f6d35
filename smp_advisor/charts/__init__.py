"""Charts of an advice: what each one shows, and its drawing as SVG text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.advice.report import plan_of
from smp_advisor.charts.plans import alternatives_chart, clusters_chart
from smp_advisor.charts.step import memory_chart, time_chart
from smp_advisor.costs import Estimate
from smp_advisor.costs import estimate as estimated
from smp_advisor.errors import AdvisorError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from smp_advisor.advice.recommendation import Recommendation
    from smp_advisor.charts.chart import Chart
    from smp_advisor.libraries.plan import Plan

__all__ = ["CHARTS", "chart_of"]

CHARTS: Mapping[str, Callable[[Recommendation, Estimate], Chart]] = {
    "memory": memory_chart,
    "time": time_chart,
    "alternatives": alternatives_chart,
    "clusters": clusters_chart,
}
"""Function that makes each chart for a plan of the advice."""


def chart_of(advice: Recommendation, name: str, plan: Plan | int | None = None) -> Chart:
    """Return a chart of a plan, see `Advice.chart`."""
    chosen = plan_of(advice, plan)
    own = chosen == advice.estimate.plan
    estimate = advice.estimate if own else estimated(advice.model, advice.cluster, advice.job, chosen)
    if name not in CHARTS:
        raise AdvisorError(f"There is no chart {name!r:.60}: name one of {', '.join(CHARTS)}.")
    return CHARTS[name](advice, estimate)
