"""The conclusion on a technique: its sentences by whether the plan and its alternative fit, and which is faster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smp_advisor.advice.practices import Decision, subset_tip
from smp_advisor.core.files import data_file
from smp_advisor.costs.wording import SAME, compared, fit, fits, gib, percent
from smp_advisor.search.rank import NEAR_BEST, TECHNIQUE_GAIN

if TYPE_CHECKING:
    from smp_advisor.advice.variants import PlannedRun, WhatIf
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.libraries.plan import Plan

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
    alternative: Plan | None = None
    practice: str = ""
    """Key of the practice, if not the technique's own (sharded data parallelism for optimizer-state sharding)."""


def not_possible(because: str) -> Conclusion:
    """Return the conclusion that a technique cannot be used."""
    return Conclusion(decision="not possible", because=because)


def against(
    decision: Decision, comparison: WhatIf, estimate: Estimate | None, because: str, *, brief: str = ""
) -> Conclusion:
    """Return a conclusion from one other plan."""
    alternative = comparison.plan if estimate else None
    return Conclusion(decision=decision, because=because, brief=brief, alternative=alternative)


def _phrase(case: str, part: str, **slots: str) -> str:
    """Return a sentence of ``phrases.toml`` about a technique, by the case of `_case`."""
    thresholds = {"near": percent(NEAR_BEST), "gain": percent(TECHNIQUE_GAIN)}
    return str(data_file("advice", "phrases")[case][part]).format(**slots, **thresholds)


def _case(run: PlannedRun, estimate: Estimate) -> str:
    """Return whether an alternative plan fits, and how fast it is against the run's plan."""
    if not fits(estimate, run.min_fit_probability):
        if not run.fits:
            return "neither fits"
        return "too close" if estimate.headroom_gib >= 0 and estimate.host_memory_fits else "does not fit"
    if not run.fits:
        return "fits instead"
    gain = estimate.samples_per_second / run.estimate.samples_per_second - 1
    if gain < -SAME:
        return "much slower" if gain < _MUCH else "slower" if gain < -NEAR_BEST else "slightly slower"
    if gain <= NEAR_BEST:
        return "slightly faster" if gain > SAME else "as fast"
    return "too little faster" if gain < TECHNIQUE_GAIN else "faster"


def why_used(run: PlannedRun, without: WhatIf, estimate: Estimate | None, *, name: str = "it") -> str:
    """Return sentences on a used technique: the plan without it, and the conclusion."""
    if estimate is None:
        return f"There is no plan without {name} to compare with: {without.obstacle}"
    required, case = run.min_fit_probability, _case(run, estimate)
    sentence = (
        f"Without {name}{without.aside}, the plan {compared(run.estimate, estimate)}. It {fit(estimate, required)}."
    )
    freed = estimate.needed_gib - run.estimate.needed_gib
    if run.objective == "headroom" and freed > 0 and run.fits and fits(estimate, required):
        return f"{sentence} It is used because it frees {gib(freed)}: the objective is headroom."
    tip = subset_tip(run.plan.library)
    return sentence + _phrase(
        case, "why_used", own=fit(run.estimate, required), name=name, tip=f": {tip}" if tip else ""
    )


def why_not_used(run: PlannedRun, with_: WhatIf, estimate: Estimate | None, *, name: str = "it") -> str:
    """Return sentences on a technique that is not used: the plan with it, and the conclusion."""
    own = fit(run.estimate, run.min_fit_probability)
    if estimate is None:
        return f"Without it, the plan {own}. There is no plan with {name} to compare with: {with_.obstacle}"
    conclusion = _phrase(_case(run, estimate), "why_not", own=own, fit=fit(estimate, run.min_fit_probability))
    return f"With {name}{with_.aside}, the plan {compared(run.estimate, estimate)}{conclusion}"


def brief_used(run: PlannedRun, estimate: Estimate, *, name: str = "it", aside: str = "") -> str:
    """`why_used` without figures. `aside` is that of the compared plan."""
    both = run.fits and fits(estimate, run.min_fit_probability)
    if both and run.objective == "headroom" and estimate.needed_gib > run.estimate.needed_gib:
        return "It frees memory, which is the objective."
    return _phrase(_case(run, estimate), "used", name=name, other=f"without {name}{aside}")


def brief_not_used(run: PlannedRun, estimate: Estimate) -> str:
    """`why_not_used` without figures."""
    if _case(run, estimate) == "too little faster":
        return "Training would be faster with it, but by less than another technique must gain."
    required = "Not required. " if run.fits and fits(estimate, run.min_fit_probability) else ""
    return f"{required}{brief_change(run, estimate)} with it."


def brief_change(run: PlannedRun, estimate: Estimate) -> str:
    """Return the effect of one change on a plan, without figures: "training would be slower"."""
    return _phrase(_case(run, estimate), "change")


def speed_of(run: PlannedRun, estimate: Estimate) -> str:
    """Speed of an alternative plan in a word: ``as fast``, ``faster`` or ``slower``."""
    change = estimate.samples_per_second / run.estimate.samples_per_second - 1
    return "as fast" if abs(change) < SAME else "faster" if change > 0 else "slower"
