"""Figures of a plan and the headline of the page."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from smp_advisor.advice.choice import certainty_in_short
from smp_advisor.advice.report import ladder_of
from smp_advisor.core.sheet import with_signs
from smp_advisor.core.tables import number
from smp_advisor.costs.figures import figures_of
from smp_advisor.costs.wording import adapter_text, percent, probability, seconds
from smp_advisor.libraries.schema import schema
from smp_advisor.search.rank import NEAR_BEST
from smp_advisor.session.settings import dollars
from smp_advisor.workload.counts import format_count

if TYPE_CHECKING:
    from smp_advisor.advice.recommendation import Recommendation
    from smp_advisor.core.tables import Figure
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.workload.model import Model


_AS_FAST = 0.005
"""Gain in speed from which a plan is shown as faster."""


Fit = Literal["fits", "risk", "over"]

FITS: dict[Fit, str] = {"fits": "Fits", "risk": "At risk", "over": "Does not fit"}
"""Words of each state."""


class Headline(NamedTuple):
    """One large figure: how exact it is, its value and unit, a rate, and its interval."""

    about: str
    """``about`` or ``roughly`` for a value with a wide interval; empty for another."""
    value: str
    unit: str
    note: str
    range: str
    """Its 95 % interval; empty without one."""


def fit(estimate: Estimate, required: float) -> Fit:
    """State of a plan: ``over`` beyond the memory, ``risk`` below the required probability, else ``fits``."""
    if not estimate.fits:
        return "over"
    return "fits" if estimate.fit_probability >= required else "risk"


def memory(estimate: Estimate) -> str:
    """Return the memory that decides the fit: per GPU, or per node where only the host's memory is too small."""
    if estimate.headroom_gib >= 0 and not estimate.fits:
        return f"{estimate.host_memory_gib_per_node:,.0f} GiB of host memory per node"
    return f"{estimate.needed_gib:,.1f} of {estimate.usable_gpu_memory_gib:.1f} GiB per GPU"


def likelihood(estimate: Estimate, required: float) -> str:
    """Probability of the fit next to the required one."""
    return f"fits with {probability(estimate.fit_probability)} probability (you requested {percent(required)})"


def in_words_of_the_page(html: str, library: str) -> str:
    """HTML of a report with one sign for the currency and the library by its name; tags and code stay as they are."""
    parts = re.split(r"(<pre class=.*?</pre>|<code.*?</code>|<[^>]*>)", html, flags=re.DOTALL)
    for index, part in enumerate(parts[::2]):
        required = r"[Ss]harding over ([\d,]+) GPUs, which the library requires"
        parts[2 * index] = re.sub(required, rf"{schema(library).name} over \1 GPUs", with_signs(part))
    return "".join(parts)


def headlines(model: Model, estimate: Estimate) -> list[Headline]:
    """Return speed, time and money; of a step and a million tokens if the job has no number of tokens."""
    figures = figures_of(model, estimate)
    rate = figures["tokens_per_second" if model.reads_tokens else "samples_per_second"]
    low, high = rate.interval or (rate.value, rate.value)
    what = rate.unit.replace("samples", "calls") if model.sample_is_call else rate.unit
    speed = Headline(_about(rate), _short(rate.value), what, "", f"{_short(low)} to {_short(high)}")
    run, step = figures.get("days"), figures["step_seconds"]
    time = Headline(_about(step), seconds(estimate.step_seconds).split(" ")[0], f"{step.unit} per step", "", step.ends)
    if run is not None:
        time = Headline(_about(run), number(run.value), run.unit, "", run.ends)
    if estimate.usd_per_hour is None:
        return [speed, time, Headline("", "–", "no price known", "", "")]
    hourly, total = f"{dollars(estimate.usd_per_hour)}/hour", figures.get("usd_total")
    if total is not None and total.interval is not None:
        ends = " to ".join(f"${_short(end)}" for end in total.interval)
        return [speed, time, Headline(_about(total), f"${_short(total.value)}", "in total", hourly, ends)]
    cost = figures["usd_per_million_tokens"]
    unit = cost.note.replace("per million", "per M")
    unit = unit.replace("samples", "calls") if model.sample_is_call else unit
    return [speed, time, Headline(_about(cost), f"${number(cost.value)}", unit, hourly, "")]


def decisive(advice: Recommendation) -> tuple[str, str]:
    """Adapter, library, techniques and batch of the recommended plan, and the certainty of the choice."""
    titles = [rung.title for rung in ladder_of(advice).rungs]
    techniques = (", ".join(titles[1:]) or titles[0]).replace("sharded data parallelism", "sharding")
    techniques = techniques.replace(", which the library requires", "")
    certain = certainty_in_short(advice.decision)
    trained = "" if advice.job.adapter is None else f"{adapter_text(advice.job.adapter)} with "
    carried = f"{trained}{schema(advice.plan.library).name}: {techniques}, batch size {advice.plan.batch_size}"
    return f"{carried}.", f"{certain[:1].upper()}{certain[1:]}"


def preferred(advice: Recommendation, estimate: Estimate) -> str:
    """Return why the search prefers the recommended plan to one that fits and is faster; empty for any other plan."""
    best, batch = advice.estimate, advice.decision.batch.policy
    gain = estimate.samples_per_second / best.samples_per_second - 1
    if gain < _AS_FAST or fit(estimate, advice.min_fit_probability) != "fits":
        return ""
    if advice.objective != "throughput":
        return f"The objective is {advice.objective}, not speed alone."
    if batch is not None and estimate.tokens_per_step > batch.target_tokens:
        least = batch.doubling_gain
        doublings = math.log2(estimate.tokens_per_step / max(batch.target_tokens, best.tokens_per_step))
        if doublings > 0 and (1 + gain) * (1 - least) ** doublings <= 1 + NEAR_BEST:
            size = f"{format_count(batch.target_tokens)} tokens" if advice.model.reads_tokens else "the usual one"
            batch_note = f"Kept at {size} per step: larger batches need more for the same loss."
            return f"{batch_note} It is {percent(gain)} faster; at least {percent(least)} per doubling is required."
    if gain <= NEAR_BEST:
        return f"Within {percent(NEAR_BEST)}, the search prefers fewer techniques, then smaller batches."
    return ""


def _about(figure: Figure) -> str:
    """Return the word for a figure whose interval is wide."""
    low, high = figure.interval or (1.0, 1.0)
    return "roughly" if high > 1.5 * low else "about" if high > 1.1 * low else ""


def _short(value: float) -> str:
    """Three significant digits with a suffix: ``247k``."""
    for scale, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if float(f"{value:.3g}") >= scale * (10 if suffix == "k" else 1):
            return f"{number(value / scale)}{suffix}"
    return number(value)
