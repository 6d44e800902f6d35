"""Charts as panels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.charts import chart_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.advice import Advice
    from smp_advisor.libraries.plan import Plan

__all__ = ["chart_panel"]


def chart_panel(name: str) -> Callable[[Advice, Plan], dict[str, Any]]:
    """Function that computes a chart of `smp_advisor.charts.CHARTS` as plain data."""
    return lambda advice, plan: chart_of(advice, name, plan).plain()
