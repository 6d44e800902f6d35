"""Figures with their units, and phrases on how a plan fits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smp_advisor.costs.estimate import Estimate

__all__ = [
    "degree_of_change",
    "first_sentence",
    "fit",
    "fits",
    "gib",
    "gives_back",
    "listed",
    "percent",
    "plural",
    "probability",
    "seconds",
    "sentences",
    "spare",
    "usd",
]

SAME = 0.005
"""Relative changes below this share count as no change: the cost model does not resolve them."""

VISIBLE_GIB = 0.05
"""Half of the last digit in which memory is shown. Larger differences are visible."""


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


def percent(share: float) -> str:
    """Share without its sign: ``3.4 %``, ``12 %``."""
    value = abs(share) * 100
    return f"{value:.1f} %" if value < 9.95 else f"{value:,.0f} %"


def probability(value: float) -> str:
    """Probability, never as a certainty: ``85.5 %``, ``over 99.9 %``."""
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


def first_sentence(text: str) -> str:
    """Text up to the first full stop that ends a sentence."""
    head, stop, _ = text.partition(". ")
    return f"{head}." if stop else text


def sentences(text: str) -> list[str]:
    """Sentences of a text: each ends with a period, and the next one starts with a capital letter or a number.

    Examples
    --------
    >>> sentences("56 of 1,234 plans fit. Llama 2 7B used 4 M. 2 of them are as fast.")
    ['56 of 1,234 plans fit.', 'Llama 2 7B used 4 M.', '2 of them are as fast.']
    """
    return [part for part in re.split(r"(?<=\.) (?=[A-Z0-9])", text) if part]


def fits(estimate: Estimate, min_fit_probability: float) -> bool:
    """Whether a plan fits in GPU and host memory with the required probability."""
    return estimate.fit_probability >= min_fit_probability and estimate.host_memory_fits


def gives_back(estimate: Estimate) -> bool:
    """Whether the memory needed is visibly below the peak, because the allocator keeps free blocks."""
    return estimate.memory.peak.total_gib - estimate.needed_gib > VISIBLE_GIB


def spare(estimate: Estimate) -> str:
    """Part of the peak that the allocator can release: the difference of peak and needed memory as shown."""
    peak, needed = round(estimate.memory.peak.total_gib, 1), round(estimate.needed_gib, 1)
    return f"the allocator can release {gib(peak - needed)}"


def fit(estimate: Estimate, min_fit_probability: float) -> str:
    """Predicate on how a plan fits: "fits with 9.1 GiB to spare"."""
    missing = gib(-estimate.headroom_gib)
    over = f"{missing if missing != '0.0 GiB' else 'slightly'} over the {gib(estimate.usable_gpu_memory_gib)} available"
    if estimate.headroom_gib < 0 and estimate.fit_probability < min_fit_probability:
        return f"does not fit: {over}"
    if not estimate.host_memory_fits:
        return (
            f"does not fit: a node has less than the required {gib(estimate.host_memory_gib_per_node)} of host memory"
        )
    if estimate.headroom_gib >= 0 and estimate.fit_probability >= min_fit_probability:
        return f"fits with {gib(estimate.headroom_gib)} to spare"
    required = probability(min_fit_probability)
    chance = f"fits with a probability of {probability(estimate.fit_probability)}"
    if estimate.fit_probability < min_fit_probability:
        return f"{chance} only ({required} required)"
    return f"{chance} ({required} required): {over}"  # the required probability is less than an even chance


def degree_of_change(before: float, after: float, *, more: str = "more", less: str = "less") -> str:
    """Relative change in words: ``12 % more``; "about the same" below half a percent."""
    change = after / before - 1
    if abs(change) < SAME:
        return "about the same"
    return f"{percent(change)} {more if change > 0 else less}"
