"""The conclusion on a technique: its sentences by whether the plan and its alternative fit, and which is faster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from smp_advisor.advice.practices import Decision, subset_tip
from smp_advisor.costs.wording import SAME, compared, fit, fits, gib, percent, step_time, throughput
from smp_advisor.search.rank import NEAR_BEST, TECHNIQUE_GAIN

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.advice.variants import Estimates, PlannedRun, Plans, WhatIf
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
    figures: tuple[tuple[str, str], ...] = ()
    alternative: Plan | None = None
    practice: str = ""
    """Key of the practice, if not the technique's own (sharded data parallelism for optimizer-state sharding)."""


def used(because: str, **more: Any) -> Conclusion:
    """The conclusion that a technique is used."""
    return Conclusion(decision="used", because=because, **more)


def not_used(because: str, **more: Any) -> Conclusion:
    """The conclusion that a technique is not used."""
    return Conclusion(decision="not used", because=because, **more)


def not_possible(because: str) -> Conclusion:
    """The conclusion that a technique cannot be used."""
    return Conclusion(decision="not possible", because=because)


@dataclass(frozen=True)
class Argument:
    """The argument for or against one technique: plans to compare with, and the conclusion from their estimates."""

    comparisons: Callable[[PlannedRun], dict[str, WhatIf]]
    conclude: Callable[[PlannedRun, Plans, Estimates], Conclusion]


def statement(
    conclusion: Callable[[PlannedRun], Conclusion], alternative: Callable[[PlannedRun], WhatIf | None] | None = None
) -> Argument:
    """An argument from the run alone, with a plan to try if there is one."""

    def comparisons(run: PlannedRun) -> dict[str, WhatIf]:
        plan = alternative(run) if alternative else None
        return {} if plan is None else {"alternative": plan}

    def conclude(run: PlannedRun, comparisons: Plans, estimates: Estimates) -> Conclusion:
        result = conclusion(run)
        return replace(result, alternative=comparisons["alternative"].plan) if "alternative" in estimates else result

    return Argument(comparisons, conclude)


def against(
    run: PlannedRun,
    decision: Literal["used", "not used"],
    comparison: WhatIf,
    estimate: Estimate | None,
    because: str,
    *,
    brief: str = "",
    further: tuple[tuple[str, str], ...] = (),
) -> Conclusion:
    """A conclusion from one other plan, with the figures of both."""
    pair = (run.estimate, estimate) if decision == "used" else (estimate, run.estimate)
    return Conclusion(
        decision=decision,
        because=because,
        brief=brief,
        figures=(*figures(*pair), *further),
        alternative=comparison.plan if estimate else None,
    )


def figures(with_: Estimate | None, without: Estimate | None) -> tuple[tuple[str, str], ...]:
    """Needed memory, step time and throughput with and without a technique, as (label, value) pairs."""
    return tuple(
        (f"{title} {label}", text(estimate))
        for label, estimate in (("with", with_), ("without", without))
        if estimate is not None
        for title, text in (
            ("memory needed", lambda estimate: gib(estimate.needed_gib)),
            ("step time", step_time),
            ("throughput", throughput),
        )
    )


class _Phrases(NamedTuple):
    used: str
    """Reason for a technique that the plan has."""
    change: str
    """Effect of a change of the plan."""
    why_used: str
    """Conclusion that follows the figures of the plan without the technique."""
    why_not: str
    """Conclusion that follows the figures of the plan with the technique, which the plan does not have."""


_UNFIT = ". It {fit}. Without it, the plan {own}."
_NEEDLESS = ". Memory does not require it: without it, the plan {own}."
_COSTS_TIME = ". Without it, the plan {own}: it would only cost time."
_FOR_SPEED = " Memory does not require it; it is used for speed."
_FASTER_WITHOUT = " Memory does not require it, and the plan is faster without it{tip}."
_FASTER = "The plan also fits {other}, and is faster."

_PHRASES = {
    "too close": _Phrases(
        "Required: without {name}, the plan is too close to the memory limit.",
        "The plan would be too close to the memory limit",
        "",
        _UNFIT,
    ),
    "does not fit": _Phrases("Required: the plan does not fit without {name}.", "The plan would not fit", "", _UNFIT),
    "neither fits": _Phrases(
        "The plan does not fit without {name}, either.",
        "The plan would not fit, either,",
        " With it, the plan {own}.",
        _UNFIT,
    ),
    "fits instead": _Phrases(
        "The plan would fit {other}.",
        "The plan would fit",
        " With it, the plan {own}.",
        ". Without it, the plan {own}; with it, the plan {fit}.",
    ),
    "much slower": _Phrases(
        "The plan also fits {other}, but training is much slower.",
        "Training would be much slower",
        _FOR_SPEED,
        _COSTS_TIME,
    ),
    "slower": _Phrases(
        "The plan also fits {other}, but training is slower.", "Training would be slower", _FOR_SPEED, _COSTS_TIME
    ),
    "slightly slower": _Phrases(
        "The plan also fits {other}, but training is slightly slower.",
        "Training would be about as fast",
        _FOR_SPEED,
        _COSTS_TIME,
    ),
    "as fast": _Phrases(
        "The plan also fits {other}, and is as fast.",
        "Training would be as fast",
        " Memory does not require it, and it does not change the speed{tip}.",
        ". Without it, the plan {own}: no speedup.",
    ),
    "slightly faster": _Phrases(
        _FASTER,
        "Training would be about as fast",
        _FASTER_WITHOUT,
        f"{_NEEDLESS} A gain of up to {percent(NEAR_BEST)} counts as none.",
    ),
    "too little faster": _Phrases(
        _FASTER,
        "Training would be faster",
        _FASTER_WITHOUT,
        f"{_NEEDLESS} A further technique must gain at least {percent(TECHNIQUE_GAIN)}.",
    ),
    "faster": _Phrases(_FASTER, "Training would be faster", _FASTER_WITHOUT, _NEEDLESS),
}
"""Sentences by the case of `_case`. Slots: the technique's `name`, `other` ("without sharding"), how the plan (`own`)
and its alternative (`fit`) fit, and AWS's `tip` against needless techniques."""


def _case(run: PlannedRun, estimate: Estimate) -> str:
    """Whether an alternative plan fits, and how fast it is against the run's plan."""
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
    """Sentences on a used technique: the plan without it, and the conclusion."""
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
    return sentence + _PHRASES[case].why_used.format(
        own=fit(run.estimate, required), name=name, tip=f": {tip}" if tip else ""
    )


def why_not_used(run: PlannedRun, with_: WhatIf, estimate: Estimate | None, *, name: str = "it") -> str:
    """Sentences on a technique that is not used: the plan with it, and the conclusion."""
    own = fit(run.estimate, run.min_fit_probability)
    if estimate is None:
        return f"Without it, the plan {own}. There is no plan with {name} to compare with: {with_.obstacle}"
    conclusion = _PHRASES[_case(run, estimate)].why_not.format(own=own, fit=fit(estimate, run.min_fit_probability))
    return f"With {name}{with_.aside}, the plan {compared(run.estimate, estimate)}{conclusion}"


def brief_used(run: PlannedRun, estimate: Estimate, *, name: str = "it", aside: str = "") -> str:
    """`why_used` without figures. `aside` is that of the compared plan."""
    both = run.fits and fits(estimate, run.min_fit_probability)
    if both and run.objective == "headroom" and estimate.needed_gib > run.estimate.needed_gib:
        return "It frees memory, which is the objective."
    return _PHRASES[_case(run, estimate)].used.format(name=name, other=f"without {name}{aside}")


def brief_not_used(run: PlannedRun, estimate: Estimate) -> str:
    """`why_not_used` without figures."""
    if _case(run, estimate) == "too little faster":
        return "Training would be faster with it, but by less than another technique must gain."
    required = "Not required. " if run.fits and fits(estimate, run.min_fit_probability) else ""
    return f"{required}{brief_change(run, estimate)} with it."


def brief_change(run: PlannedRun, estimate: Estimate) -> str:
    """Effect of one change on a plan, without figures: "training would be slower"."""
    return _PHRASES[_case(run, estimate)].change


def speed_of(run: PlannedRun, estimate: Estimate) -> str:
    """Speed of an alternative plan in a word: ``as fast``, ``faster`` or ``slower``."""
    change = estimate.samples_per_second / run.estimate.samples_per_second - 1
    return "as fast" if abs(change) < SAME else "faster" if change > 0 else "slower"
