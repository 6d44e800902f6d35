"""The conclusion on a technique, and the sentences that all techniques share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smp_advisor.guidance.practices import subset_tip
from smp_advisor.libraries.groups import shard_degree
from smp_advisor.search import NEAR_BEST, TECHNIQUE_GAIN
from smp_advisor.wording import SAME, compared, fit, fits, gib, percent

if TYPE_CHECKING:
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.planned_run import PlannedRun
    from smp_advisor.guidance.step import Decision
    from smp_advisor.guidance.what_if import WhatIf
    from smp_advisor.libraries.plan import Plan

__all__ = ["Conclusion", "brief_change", "brief_not_used", "brief_used", "why_not_used", "why_used"]


_MUCH = -1 / 3
"""Change of the throughput from which a plan is much slower."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Conclusion:
    """Decision on a technique, with its reasons."""

    decision: Decision
    because: str
    """Reason with its figures."""
    brief: str = ""
    """Reason in one sentence or two; empty for that of `brief_used` or `brief_not_used`, or the first sentence."""
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
        return f"{sentence}. Memory does not require it: without it, the plan {own}.{_too_little(gain)}"
    effect = "it would only cost time" if gain < -SAME else "no speedup"
    return f"{sentence}. Without it, the plan {own}: {effect}."


def _too_little(gain: float) -> str:
    """Why a gain in speed does not decide for a technique, as a sentence; empty if it is large enough."""
    if gain <= NEAR_BEST:
        return f" A gain of up to {percent(NEAR_BEST)} counts as none."
    return f" A further technique must gain at least {percent(TECHNIQUE_GAIN)}." if gain < TECHNIQUE_GAIN else ""


def brief_used(run: PlannedRun, estimate: Estimate, *, name: str = "it", plan: Plan | None = None) -> str:
    """`why_used` without figures.

    Parameters
    ----------
    plan
        The compared plan, which may have sharding instead of the technique.
    """
    shards = 1 if plan is None else shard_degree(plan, run.cluster)
    other = "with sharding in its place" if shards > 1 >= shard_degree(run.plan, run.cluster) else f"without {name}"
    if not fits(estimate, run.min_fit_probability):
        if run.fits and estimate.headroom_gib >= 0 and estimate.host_memory_fits:
            return f"Required: without {name}, the plan is too close to the memory limit."
        end = "." if run.fits else ", either."
        return f"{'Required: the' if run.fits else 'The'} plan does not fit without {name}{end}"
    if not run.fits:
        return f"The plan would fit without {name}."
    gain = _gain(run.estimate, estimate)
    if run.objective == "headroom" and estimate.needed_gib > run.estimate.needed_gib:
        return "It frees memory, which is the objective."
    if gain < -SAME:
        degree = "much " if gain < _MUCH else "" if gain < -NEAR_BEST else "slightly "
        return f"The plan also fits {other}, but training is {degree}slower."
    return f"The plan also fits {other}, and is {'faster' if gain > SAME else 'as fast'}."


def brief_not_used(run: PlannedRun, estimate: Estimate) -> str:
    """`why_not_used` without figures."""
    if not fits(estimate, run.min_fit_probability) or not run.fits:
        return f"{brief_change(run, estimate)} with it."
    if NEAR_BEST < _gain(run.estimate, estimate) < TECHNIQUE_GAIN:
        return "Training would be faster with it, but by less than another technique must gain."
    return f"Not required. {brief_change(run, estimate)} with it."


def brief_change(run: PlannedRun, estimate: Estimate) -> str:
    """Effect of one change on a plan, without figures: "training would be slower"."""
    if not fits(estimate, run.min_fit_probability):
        if run.fits and estimate.headroom_gib >= 0 and estimate.host_memory_fits:
            return "The plan would be too close to the memory limit"
        return "The plan would not fit" if run.fits else "The plan would not fit, either,"
    if not run.fits:
        return "The plan would fit"
    gain = _gain(run.estimate, estimate)
    if abs(gain) <= NEAR_BEST:
        return f"Training would be {'about as fast' if abs(gain) > SAME else 'as fast'}"
    return f"Training would be {'faster' if gain > 0 else 'much slower' if gain < _MUCH else 'slower'}"
