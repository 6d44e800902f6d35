"""The tab with the reasons for the plan on screen, and the requirements of that plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.charts.ladder import ladder_chart
from smp_advisor.notebook.panels.compare import comparison_data
from smp_advisor.notebook.view_state import explanation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.live import LiveAdvice
    from smp_advisor.live.control_state import ControlState

__all__ = ["requirements", "why"]


def why(advice: LiveAdvice, state: ControlState, _: Mapping[str, object]) -> Mapping[str, object]:
    """Reasons for the plan, and for another plan than the recommended one, the difference and its price.

    ``because`` is how the search chose the recommended plan; everything else is about the plan on screen.
    """
    shown = advice.at(state)
    recommended = advice.recommended
    own = explanation(shown)
    return {
        "because": explanation(recommended)["because"],
        "compared": None if shown is recommended else comparison_data(advice.compare_at(state)),
        "ladder": ladder_chart(shown, state.estimate).plain(),
        "steps": own["steps"],
        "reference": own["reference"],
    }


def requirements(advice: LiveAdvice, state: ControlState, _: Mapping[str, object]) -> Mapping[str, object]:
    """Requirements of the plan for the script, the data and the job."""
    return {"pitfalls": explanation(advice.at(state))["pitfalls"]}
