"""The conclusion on a technique, and the sentences that all techniques share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smp_advisor.guidance.comparing import compared
from smp_advisor.guidance.practices import subset_tip
from smp_advisor.guidance.wording import SAME, fit, fits, gib

if TYPE_CHECKING:
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.planned_run import PlannedRun
    from smp_advisor.guidance.step import Decision
    from smp_advisor.guidance.what_if import WhatIf
    from smp_advisor.libraries.plan import Plan

__all__ = ["Conclusion", "why_not_used", "why_used"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Conclusion:
    """Decision on a technique, with its reasons."""

    decision: Decision
    because: str
    figures: tuple[tuple[str, str], ...] = ()
    alternative: Plan | None = None
    practice: str = ""
    """Key of the practice, if not the technique's own (sharded data parallelism for optimizer-state sharding)."""


def _gain(current: Estimate, alternative: Estimate) -> float:
    """Gain in throughput of an alternative plan, as a share of the current throughput."""
    return alternative.samples_per_second / current.samples_per_second - 1


def why_used(run: PlannedRun, without: WhatIf, estimate: Estimate | None, *, name: str = "it") -> str:
    """Sentences on a used technique: the plan without it, and the conclusion."""
    if estimate is None:
        return f"There is no plan without {name} to compare with: {without.obstacle}"
    required = run.min_fit_probability
    sentence = (
        f"Without {name}{without.aside}, the plan {compared(run.estimate, estimate)}. It {fit(estimate, required)}."
    )
    if not fits(estimate, required):
        return sentence if run.fits else f"{sentence} With it, the plan {fit(run.estimate, required)}."
    if not run.fits:
        return (
            f"{sentence} With it, the plan {fit(run.estimate, required)}: {name} costs more memory than it saves here."
        )
    gain = _gain(run.estimate, estimate)
    freed = estimate.needed_gib - run.estimate.needed_gib
    if run.objective == "headroom" and freed > 0:
        return f"{sentence} It is used because it frees {gib(freed)}: the objective is headroom."
    if gain < -SAME:
        return f"{sentence} Memory does not require it; it is used for speed."
    reason = "and the plan is faster without it" if gain > SAME else "and it does not change the speed"
    tip = subset_tip(run.plan.library)
    return f"{sentence} Memory does not require it, {reason}{f': {tip}' if tip else ''}."


def why_not_used(run: PlannedRun, with_: WhatIf, estimate: Estimate | None, *, name: str = "it") -> str:
    """Sentences on a technique that is not used: the plan with it, and the conclusion."""
    required = run.min_fit_probability
    own = fit(run.estimate, required)
    if estimate is None:
        return f"Without it, the plan {own}. There is no plan with {name} to compare with: {with_.obstacle}"
    sentence = f"With {name}{with_.aside}, the plan {compared(run.estimate, estimate)}"
    if not fits(estimate, required):
        return f"{sentence}. It {fit(estimate, required)}. Without it, the plan {own}."
    if not run.fits:
        return f"{sentence}. Without it, the plan {own}; with it, the plan {fit(estimate, required)}."
    gain = _gain(run.estimate, estimate)
    if gain > SAME:
        return f"{sentence}. Memory does not require it: without it, the plan {own}. It would be used for speed."
    effect = "it would only cost time" if gain < -SAME else "no speedup"
    return f"{sentence}. Without it, the plan {own}: {effect}."
