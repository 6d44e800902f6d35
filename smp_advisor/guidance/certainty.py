"""How certain the choice of a plan is, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.guidance.wording import listed, percent

if TYPE_CHECKING:
    from smp_advisor.search.decision import Decision

__all__ = ["certainty"]


def certainty(decision: Decision) -> str:
    """Probability that the plan is near the fastest, its expected regret, and families as fast as its own."""
    chance = min(decision.near_best_probability, 0.99)
    text = (
        f"Certainty: with a probability of {percent(chance)}, no plan is noticeably faster (expected regret"
        f" {percent(decision.expected_regret)})."
    )
    if decision.indistinct:
        text += f" By the cost model, {listed(decision.indistinct)} may be as fast"
        text += f"; the published family is preferred ({decision.published})." if decision.published else "."
    return text
