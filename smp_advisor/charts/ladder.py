"""The ladder of a plan as bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.drawing.chart import Chart
from smp_advisor.guidance.ladder import COLUMNS, cells
from smp_advisor.guidance.report import ladder_of

if TYPE_CHECKING:
    from smp_advisor.advice import Advice
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.drawing.ladder import LadderRow
    from smp_advisor.guidance import Rung

__all__ = ["ladder_chart"]


def ladder_chart(advice: Advice, estimate: Estimate) -> Chart:
    """Memory and step time of each technique, added to those before it, and of the plan with one change each."""
    ladder = ladder_of(advice, estimate.plan)
    before = [None, *ladder.rungs[:-1]]
    itself = ladder.rungs[-1]
    rows = [_row(rung, last, used=True) for rung, last in zip(ladder.rungs, before, strict=True)]
    rows += [_row(rung, itself, used=False) for rung in ladder.unused]
    texts = [cells(rung, first=not position) for position, rung in enumerate(ladder.rungs)]
    texts += [cells(rung, first=True) for rung in ladder.unused]
    return Chart(
        kind="ladder",
        title="Techniques in the order of AWS's best practices",
        data={"limit": ladder.usable_gib, "rows": rows},
        columns=tuple(column.capitalize() for column in COLUMNS),
        rows=tuple(texts),
        notes=(
            "Each technique is added to those above it; dashed outlines are the figures before it."
            + (" Below the line: the plan on the screen with one change each." if ladder.unused else ""),
        ),
    )


def _row(rung: Rung, before: Rung | None, *, used: bool) -> LadderRow:
    title = f"+ {rung.title}" if used and before is not None else rung.title
    same_batch = (
        before is not None
        and before.estimate is not None
        and rung.estimate is not None
        and before.estimate.global_batch_size == rung.estimate.global_batch_size
    )
    return {
        "title": title,
        "memory": _rounded(rung.needed_gib),
        "memory_before": None if before is None else _rounded(before.needed_gib),
        "step": _rounded(rung.step_seconds),
        # Step times of other batches do not compare.
        "step_before": _rounded(before.step_seconds) if before is not None and same_batch else None,
        "fits": rung.fits,
        "decision": rung.decision,
        "used": used,
        "because": rung.because,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
