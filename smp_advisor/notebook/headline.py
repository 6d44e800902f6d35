"""The first figures of an estimate: whether it fits, one memory figure, speed, time and money."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from smp_advisor.guidance.certainty import certainty_in_short
from smp_advisor.live.labels import dollars
from smp_advisor.wording import between, cost_per_million, number, percent, probability, seconds

if TYPE_CHECKING:
    from smp_advisor.advice import Advice
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.workload.model import Model

__all__ = ["FITS", "Fit", "Headline", "decisive", "fit", "headlines", "likelihood", "memory"]

Fit = Literal["fits", "risk", "over"]

FITS: dict[Fit, tuple[str, str]] = {"fits": ("✓", "Fits"), "risk": ("!", "At risk"), "over": ("✗", "Does not fit")}
"""Sign and words of each state."""


class Headline(NamedTuple):
    """One large figure: its value, its unit, and the interval or rate below it."""

    value: str
    unit: str
    note: str


def fit(estimate: Estimate, required: float) -> Fit:
    """State of a plan: ``over`` beyond the memory, ``risk`` below the required probability, else ``fits``."""
    if not estimate.fits:
        return "over"
    return "fits" if estimate.fit_probability >= required else "risk"


def memory(estimate: Estimate) -> str:
    """Memory that decides the fit: per GPU, or per node where only the host's memory is too small."""
    if estimate.headroom_gib >= 0 and not estimate.fits:
        return f"{estimate.host_memory_gib_per_node:,.0f} GiB of host memory per node"
    return f"{estimate.needed_gib:,.1f} of {estimate.usable_gpu_memory_gib:.1f} GiB per GPU"


def likelihood(estimate: Estimate, required: float) -> str:
    """Probability of the fit next to the required one."""
    return f"{probability(estimate.fit_probability)} likely, {percent(required)} required"


def headlines(model: Model, estimate: Estimate) -> list[Headline]:
    """Speed, time and money; of a step and a million tokens if the job has no number of tokens."""
    return [_speed(model, estimate), _time(estimate), _money(model, estimate)]


def decisive(advice: Advice) -> tuple[str, str]:
    """Techniques of the recommended plan, and how certain the choice is."""
    titles = [rung.title for rung in advice.ladder().rungs]
    techniques = ", ".join(titles[1:]) or titles[0]
    fitting = f"{advice.plans_fit:,} of {advice.plans_enumerated:,} plans fit."
    certain = certainty_in_short(advice.decision)
    return f"{_capital(techniques)}.", f"{fitting} {_capital(certain)}"


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _speed(model: Model, estimate: Estimate) -> Headline:
    if model.reads_tokens:
        value, ends, unit = estimate.tokens_per_second, estimate.tokens_per_second_range, "tokens/s"
    else:
        value, ends, unit = estimate.samples_per_second, estimate.samples_per_second_range, "samples/s"
    return Headline(_short(value), unit, f"{_short(ends[0])} to {_short(ends[1])}")


def _time(estimate: Estimate) -> Headline:
    if (ends := estimate.days_range) is not None and estimate.days is not None:
        unit, scale = ("days", 1) if estimate.days >= 1 else ("hours", 24)
        return Headline(number(scale * estimate.days), unit, between(ends, scale))
    value, unit = seconds(estimate.step_seconds).split(" ", 1)
    return Headline(value, f"{unit} per step", between(estimate.step_seconds_range, 1000 if unit == "ms" else 1))


def _money(model: Model, estimate: Estimate) -> Headline:
    if estimate.usd_per_hour is None:
        return Headline("–", "no price known", "")
    hourly = f"{dollars(estimate.usd_per_hour)}/hour"
    if estimate.usd_total is not None and (ends := estimate.usd_total_range) is not None:
        return Headline(f"${_short(estimate.usd_total)}", f"at {hourly}", f"${_short(ends[0])} to ${_short(ends[1])}")
    amount, _, unit = cost_per_million(model, estimate).partition(" USD ")
    return Headline(f"${amount}", unit.partition(") ")[2].replace("per million", "per M"), hourly)


def _short(value: float) -> str:
    """Three significant digits with a suffix: ``247k``."""
    for scale, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if float(f"{value:.3g}") >= scale * (10 if suffix == "k" else 1):
            return f"{number(value / scale)}{suffix}"
    return number(value)
