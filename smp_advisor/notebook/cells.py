"""The code that a plan exports, as the cells to insert."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smp_advisor.advice import Advice
    from smp_advisor.library.plan import Plan

__all__ = ["cells"]


def cells(advice: Advice, plan: Plan) -> list[str]:
    """Cells in the order they are to be run: the training script, unless it is the user's own, then the estimator."""
    sources = [advice.script_cell(plan), advice.cell(plan=plan)]
    return [source for source in sources if source.strip()]
