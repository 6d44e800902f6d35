"""Charts as panels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.charts import chart_of
from smp_advisor.charts.clusters import clusters_chart

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from smp_advisor.advice import Advice
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.live import LiveAdvice
    from smp_advisor.live.control_state import ControlState

__all__ = ["chart_panel", "clusters"]


def chart_panel(name: str) -> Callable[[Advice, Plan], dict[str, Any]]:
    """Function that computes a chart of `smp_advisor.charts.CHARTS` as plain data."""
    return lambda advice, plan: chart_of(advice, name, plan).plain()


def clusters(advice: LiveAdvice, state: ControlState, options: Mapping[str, object]) -> dict[str, Any]:
    """Days against dollars. `options` may have further ``instances``: names of types between commas."""
    del advice
    names = str(options.get("instances") or "").split(",")
    return clusters_chart(state.advice, state.estimate, [name for name in names if name]).plain()
