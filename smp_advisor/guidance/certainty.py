"""How certain the choice of a plan is, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.search import NEAR_BEST
from smp_advisor.wording import listed, percent

if TYPE_CHECKING:
    from smp_advisor.search import Decision

__all__ = ["certainty", "certainty_in_short"]

_CLEAR = 0.75


def certainty(decision: Decision) -> str:
    """Whether the choice is clear, its expected regret, and families as fast as its own."""
    regret, least = decision.expected_regret, decision.least_regret
    text = f"Certainty: {certainty_in_short(decision)} Over the cost model's errors it"
    text += f" loses {percent(regret)} of speed on average"
    text += f", another plan {percent(least)}." if regret - least >= NEAR_BEST else "; no plan loses noticeably less."
    if decision.indistinct:
        text += f" By the cost model, {listed(decision.indistinct)} may be as fast"
        text += f"; the published family is preferred ({decision.published})." if decision.published else "."
    return text


def certainty_in_short(decision: Decision) -> str:
    """Whether the choice is clear, as the start of `certainty`'s text."""
    chance = decision.near_best_probability
    call = "a close call" if chance < _CLEAR else "a clear choice"
    return f"{call} ({percent(min(chance, 0.99))} likely that no plan is noticeably faster)."
