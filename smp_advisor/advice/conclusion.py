"""The conclusion on a technique: its sentences by whether the plan and its alternative fit, and which is faster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smp_advisor.core.files import data_file
from smp_advisor.costs.wording import SAME, compared, fit, fits
from smp_advisor.search.rank import NEAR_BEST, TECHNIQUE_GAIN

if TYPE_CHECKING:
    from smp_advisor.advice.practices import Decision
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


def figures(run: PlannedRun, comparison: WhatIf, estimate: Estimate | None, lead: str) -> str:
    """Return another plan in figures: "Without it, the plan needs ... It fits ..."; or why there is none."""
    if estimate is None:
        return f"There is no plan {lead[:1].lower()}{lead[1:]} to compare with: {comparison.obstacle}"
    verdict = fit(estimate, run.min_fit_probability)
    return f"{lead}{comparison.aside}, the plan {compared(run.estimate, estimate)}. It {verdict}."


def brief_used(run: PlannedRun, estimate: Estimate, *, name: str = "it", aside: str = "") -> str:
    """Return the reason for a used technique, from the plan without it, whose `aside` is that of the comparison."""
    both = run.fits and fits(estimate, run.min_fit_probability)
    if both and run.objective == "headroom" and estimate.needed_gib > run.estimate.needed_gib:
        return "It frees memory, which is the objective."
    reason: str = data_file("advice", "phrases")[_case(run, estimate)]["used"]
    return reason.format(name=name, other=f"without {name}{aside}")


def brief_not_used(run: PlannedRun, estimate: Estimate) -> str:
    """Return the reason against a technique, from the plan with it."""
    if _case(run, estimate) == "too little faster":
        return "Training would be faster with it, but by less than another technique must gain."
    required = "Not required. " if run.fits and fits(estimate, run.min_fit_probability) else ""
    return f"{required}{brief_change(run, estimate)} with it."


def brief_change(run: PlannedRun, estimate: Estimate) -> str:
    """Return the effect of one change on a plan, without figures: "training would be slower"."""
    return str(data_file("advice", "phrases")[_case(run, estimate)]["change"])


def speed_of(run: PlannedRun, estimate: Estimate) -> str:
    """Speed of an alternative plan in a word: ``as fast``, ``faster`` or ``slower``."""
    change = estimate.samples_per_second / run.estimate.samples_per_second - 1
    return "as fast" if abs(change) < SAME else "faster" if change > 0 else "slower"
