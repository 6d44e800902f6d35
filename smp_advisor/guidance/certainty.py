"""How certain the choice of a plan is, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.guidance.wording import listed, percent
from smp_advisor.search import NEAR_BEST

if TYPE_CHECKING:
    from smp_advisor.search.decision import Decision

__all__ = ["certainty"]

_CLEAR = 0.75


def certainty(decision: Decision) -> str:
    """Whether the choice is clear, its expected regret, and families as fast as its own."""
    chance, regret, least = decision.near_best_probability, decision.expected_regret, decision.least_regret
    text = "Certainty: a close call" if chance < _CLEAR else "Certainty: a clear choice"
    text += f" ({percent(min(chance, 0.99))} likely that no plan is noticeably faster). Over the cost model's errors it"
    text += f" loses {percent(regret)} of speed on average"
    text += f", another plan {percent(least)}." if regret - least >= NEAR_BEST else "; no plan loses noticeably less."
    if decision.indistinct:
        text += f" By the cost model, {listed(decision.indistinct)} may be as fast"
        text += f"; the published family is preferred ({decision.published})." if decision.published else "."
    return text
