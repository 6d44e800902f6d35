"""The charts of an advice, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.arguments import require_types
from smp_advisor.charts.alternatives import alternatives_chart
from smp_advisor.charts.clusters import clusters_chart
from smp_advisor.charts.ladder import ladder_chart
from smp_advisor.charts.memory import memory_chart, time_chart
from smp_advisor.charts.ranks import ranks_chart
from smp_advisor.charts.schedule import schedule_chart
from smp_advisor.charts.sweep import settings_with_sweeps, sweep_chart
from smp_advisor.costs import estimate as estimated
from smp_advisor.errors import AdvisorError
from smp_advisor.guidance.report import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from smp_advisor.advice import Advice
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.drawing.chart import Chart
    from smp_advisor.libraries.plan import Plan

__all__ = ["CHARTS", "chart_of"]

CHARTS: Mapping[str, Callable[[Advice, Estimate], Chart]] = {
    "memory": memory_chart,
    "time": time_chart,
    "schedule": schedule_chart,
    "alternatives": alternatives_chart,
    "clusters": clusters_chart,
    "ladder": ladder_chart,
    "ranks": ranks_chart,
}
"""Function that makes each chart for a plan of the advice."""


def chart_of(advice: Advice, name: str, plan: Plan | int | None = None) -> Chart:
    """A chart of a plan, see `Advice.chart`."""
    require_types({"name": (name, str)}, "chart")
    chosen = plan_of(advice, plan)
    own = chosen == advice.estimate.plan
    estimate = advice.estimate if own else estimated(advice.model, advice.cluster, advice.job, chosen)
    if name in CHARTS:
        return CHARTS[name](advice, estimate)
    settings = settings_with_sweeps(advice)
    if name in settings:
        return sweep_chart(advice, estimate, name)
    raise AdvisorError(
        f"There is no chart {name!r:.60}: name one of {', '.join(CHARTS)}, or a setting: {', '.join(settings)}."
    )
