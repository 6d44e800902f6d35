"""Figures as people read them, and the sentences that compare two estimates."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smp_advisor.costs.estimate import Estimate

__all__ = [
    "compared",
    "degree_of_change",
    "figures",
    "fit",
    "fits",
    "gib",
    "gives_back",
    "listed",
    "percent",
    "plural",
    "probability",
    "seconds",
    "spare",
    "throughput",
    "usd",
]

SAME = 0.005
"""Changes of less than this share are no change: the cost model does not resolve them."""


VISIBLE_GIB = 0.05
"""Half of the last digit in which memory is shown: what differs by more is shown as different."""


def gib(value: float) -> str:
    """Memory: ``28.0 GiB``."""
    return f"{value:,.1f} GiB"


def seconds(value: float) -> str:
    """Time of a step: ``3.54 s``, ``87 ms``, ``0.42 ms``."""
    if value < 0.00995:
        return f"{value * 1000:.2g} ms"
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    return f"{value:,.2f} s" if value < 100 else f"{value:,.0f} s"


def throughput(value: float) -> str:
    """Samples a second: ``361.5 samples/s``."""
    return f"{value:,.1f} samples/s" if value >= 1 else f"{value:.3f} samples/s"


def percent(share: float) -> str:
    """Share without its sign: ``3.4 %``, ``12 %``."""
    value = abs(share) * 100
    return f"{value:.1f} %" if value < 9.95 else f"{value:,.0f} %"


def probability(value: float) -> str:
    """Probability that never claims certainty: ``85.5 %``, ``over 99.9 %``."""
    if value > 0.999:
        return "over 99.9 %"
    return "under 0.1 %" if value < 0.001 else f"{value * 100:.1f} %"


def usd(value: float) -> str:
    """Money: ``25.25 USD``."""
    return f"{value:,.2f} USD" if value < 1000 else f"{value:,.0f} USD"


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """Count with its noun: ``1 microbatch``, ``4 microbatches``."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def listed(parts: tuple[str, ...] | list[str]) -> str:
    """Join with commas and a final "and"."""
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def fits(estimate: Estimate, min_fit_probability: float) -> bool:
    """Whether a plan fits with the probability asked for, in GPU and host memory."""
    return estimate.fit_probability >= min_fit_probability and estimate.host_memory_fits


def gives_back(estimate: Estimate) -> bool:
    """Whether what a GPU must have is visibly less than its peak, because the allocator keeps free blocks."""
    return estimate.memory.peak.total_gib - estimate.needed_gib > VISIBLE_GIB


def spare(estimate: Estimate) -> str:
    """What of the peak the allocator can do without: the difference of the two as they are shown."""
    peak, needed = round(estimate.memory.peak.total_gib, 1), round(estimate.needed_gib, 1)
    return f"the allocator can give back {gib(peak - needed)}"


def fit(estimate: Estimate, min_fit_probability: float) -> str:
    """Predicate on how a plan fits: "fits with 9.1 GiB to spare"."""
    usable = gib(estimate.usable_gpu_memory_gib)
    short = gib(-estimate.headroom_gib)
    over = f"{short if short != '0.0 GiB' else 'slightly'} more than the usable {usable}"
    if estimate.headroom_gib < 0 and estimate.fit_probability < min_fit_probability:
        return f"does not fit: {over}"
    if not estimate.host_memory_fits:
        return f"does not fit: {gib(estimate.host_memory_gib_per_node)} of host memory a node is more than there is"
    if estimate.fit_probability < min_fit_probability:
        return (
            f"fits with a probability of {probability(estimate.fit_probability)} only, where"
            f" {probability(min_fit_probability)} is asked for"
        )
    if estimate.headroom_gib < 0:  # less than an even chance was asked for
        asked = probability(min_fit_probability)
        return f"fits with a probability of {probability(estimate.fit_probability)}, where {asked} is enough: {over}"
    return f"fits with {gib(estimate.headroom_gib)} to spare"


def degree_of_change(before: float, after: float, *, more: str = "more", less: str = "less") -> str:
    """Relative change in words: ``12 % more``; "about the same" below half a percent."""
    change = after / before - 1
    if abs(change) < SAME:
        return "about the same"
    return f"{percent(change)} {more if change > 0 else less}"


def compared(now: Estimate, other: Estimate) -> str:
    """Predicate of another plan against the present one, memory and speed.

    Step times are compared where both plans process the same global batch, throughputs otherwise.
    """
    here, there = gib(now.needed_gib), gib(other.needed_gib)
    memory = f"the same {here} a GPU" if here == there else f"{there} a GPU instead of {here}"
    if now.global_batch_size == other.global_batch_size:
        before, after = seconds(now.step_seconds), seconds(other.step_seconds)
        change = degree_of_change(now.step_seconds, other.step_seconds, more="longer", less="shorter")
        time = f"the same {after} a step" if before == after else f"{after} a step instead of {before} ({change})"
        return f"would need {memory} and take {time}"
    before, after = throughput(now.samples_per_second), throughput(other.samples_per_second)
    change = degree_of_change(now.samples_per_second, other.samples_per_second)
    speed = f"the same {after}" if before == after else f"{after} instead of {before} ({change})"
    return f"would need {memory} and process {speed}"


def figures(with_: Estimate | None, without: Estimate | None) -> tuple[tuple[str, str], ...]:
    """Memory that is needed, step time and throughput with and without a technique, as label and value."""
    rows: list[tuple[str, str]] = []
    for label, one in (("with", with_), ("without", without)):
        if one is not None:
            rows += [
                (f"memory needed {label}", gib(one.needed_gib)),
                (f"step time {label}", seconds(one.step_seconds)),
                (f"throughput {label}", throughput(one.samples_per_second)),
            ]
    return tuple(rows)
