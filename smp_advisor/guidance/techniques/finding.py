"""What a technique's comparison found, and the conclusions that all techniques share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smp_advisor.guidance.practices import subset_tip
from smp_advisor.guidance.wording import SAME, compared, fit, fits, gib

if TYPE_CHECKING:
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.case import Case
    from smp_advisor.guidance.step import Decision
    from smp_advisor.guidance.what_if import WhatIf
    from smp_advisor.libraries.plan import Plan

__all__ = ["Finding", "why_not_used", "why_used"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Decision on a technique and the sentences that argue it."""

    decision: Decision
    because: str
    figures: tuple[tuple[str, str], ...] = ()
    alternative: Plan | None = None
    practice: str = ""
    """Key of the practice where it is not the technique's own (sharded data parallelism for optimizer sharding)."""


def _gain(now: Estimate, other: Estimate) -> float:
    """By how much another plan is faster, as a share of the present throughput."""
    return other.samples_per_second / now.samples_per_second - 1


def why_used(case: Case, without: WhatIf, estimate: Estimate | None, *, name: str = "it") -> str:
    """Sentences on a used technique: the plan without it, and what follows."""
    if estimate is None:
        return f"There is no plan without {name} to compare with: {without.obstacle}"
    least = case.min_fit_probability
    sentence = (
        f"Without {name}{without.aside} the plan {compared(case.estimate, estimate)}; it then {fit(estimate, least)}."
    )
    if not fits(estimate, least):
        return sentence + ("" if case.fits else f" With it the plan {fit(case.estimate, least)}.")
    if not case.fits:
        return f"{sentence} With it the plan {fit(case.estimate, least)}: {name} costs more memory than it saves here."
    gain = _gain(case.estimate, estimate)
    freed = estimate.needed_gib - case.estimate.needed_gib
    if case.objective == "headroom" and freed > 0:
        return f"{sentence} It is there for the {gib(freed)} it frees: the objective is headroom."
    if gain > SAME:
        return f"{sentence} Memory does not ask for it, and the plan would be faster without: {subset_tip()}."
    if gain < -SAME:
        return f"{sentence} Memory does not ask for it: it is there for speed."
    return f"{sentence} Neither memory nor speed asks for it: {subset_tip()}."


def why_not_used(case: Case, with_: WhatIf, estimate: Estimate | None, *, name: str = "it") -> str:
    """Sentences on a technique that is not used: the plan with it, and what follows."""
    least = case.min_fit_probability
    own = fit(case.estimate, least)
    if estimate is None:
        return f"The plan {own} without it. There is no plan with {name} to compare with: {with_.obstacle}"
    sentence = f"With {name}{with_.aside} the plan {compared(case.estimate, estimate)}"
    gain = _gain(case.estimate, estimate)
    if case.fits:
        if not fits(estimate, least):
            return f"{sentence}; it then {fit(estimate, least)}. Without it the plan {own}."
        if gain > SAME:
            return f"{sentence}. Memory does not ask for it, since the plan {own} without it; it would be for speed."
        cost = "it would only cost time" if gain < -SAME else "it would bring no speed either"
        return f"{sentence}. The plan {own} without it, so {cost}."
    if fits(estimate, least):
        return f"{sentence}. Without it the plan {own}; with it the plan {fit(estimate, least)}."
    return f"{sentence}; it then {fit(estimate, least)}. Without it the plan {own}."
