"""Data of the tabs, each computed when its tab is opened: one module per panel, registered by name in `PANELS`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.errors import PlanError
from smp_advisor.notebook.panels.charts import chart_panel, clusters
from smp_advisor.notebook.panels.compare import compare
from smp_advisor.notebook.panels.why import requirements, why

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from smp_advisor.advice import Advice
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.live import LiveAdvice
    from smp_advisor.live.control_state import ControlState

__all__ = ["LIVE_PANELS", "PANELS", "SLOW_PANELS", "panel_data"]

PANELS: dict[str, Callable[[Advice, Plan], Mapping[str, object]]] = {
    name: chart_panel(name) for name in ("alternatives", "ladder", "ranks", "schedule")
}
"""Function that computes the data of a panel for the plan on the screen, by the name in the view's request."""
SLOW_PANELS = frozenset({"clusters"})
"""Panels that take seconds: they are computed while the kernel answers other requests."""


LIVE_PANELS: dict[str, Callable[[LiveAdvice, ControlState, Mapping[str, object]], Mapping[str, object]]] = {
    "why": why,
    "requirements": requirements,
    "compare": compare,
    "clusters": clusters,
}
"""The same for panels that read the recommendation, the history or the snapshots, too. The last parameter contains the
options that the view set in the panel."""


def panel_data(name: str, advice: LiveAdvice, state: ControlState, options: object = None) -> Mapping[str, object]:
    """Data of one panel for a state of the controls.

    Raises
    ------
    AdvisorError
        There is no such panel, the plan has no such data, or an option is wrong.
    """
    if name in LIVE_PANELS:
        return LIVE_PANELS[name](advice, state, options if isinstance(options, dict) else {})
    if name not in PANELS:
        raise PlanError(f"The advisor has no panel {name!r}; it has {', '.join((*LIVE_PANELS, *PANELS))}.")
    return PANELS[name](state.advice, state.plan)
