"""Data of the tabs, each computed when its tab is opened: one module per panel, registered by name in `PANELS`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.errors import PlanError
from smp_advisor.notebook.panels.charts import chart_panel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from smp_advisor.advice import Advice
    from smp_advisor.libraries.plan import Plan

__all__ = ["PANELS", "panel_data"]

PANELS: dict[str, Callable[[Advice, Plan], Mapping[str, object]]] = {
    name: chart_panel(name) for name in ("alternatives", "clusters", "ladder", "ranks", "schedule")
}
"""Function that computes the data of a panel for the plan on the screen, by the name in the view's request."""


def panel_data(name: str, advice: Advice, plan: Plan) -> Mapping[str, object]:
    """Data of one panel.

    Raises
    ------
    PlanError
        There is no such panel, or the plan has no such data.
    """
    if name not in PANELS:
        raise PlanError(f"The advisor has no panel {name!r}; it has {', '.join(PANELS) or 'none'}.")
    return PANELS[name](advice, plan)
