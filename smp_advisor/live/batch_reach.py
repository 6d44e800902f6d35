"""Batch sizes besides those of a search, for the control of the batch: the largest that fits, and some that do not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from smp_advisor.costs import estimate_many
from smp_advisor.errors import AdvisorError
from smp_advisor.live.settings import plan_of
from smp_advisor.wording import fits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.advice import Advice
    from smp_advisor.libraries.library import Settings
    from smp_advisor.libraries.plan import Plan

__all__ = ["largest_that_fits", "sizes_beyond"]

_DOUBLINGS = 12
"""Beyond them, memory does not depend on the batch."""
_PARTS = 16
"""Parts of an interval that are tried at once for the largest batch that fits."""
_BEYOND = 2
"""Batch sizes that do not fit and have a position."""


def sizes_beyond(advice: Advice, settings: Settings, sizes: Sequence[int]) -> list[int]:
    """Batch sizes above `sizes`, in halves of a doubling, up to the second that does not fit.

    None if two of `sizes` do not fit, if the job fixes the global batch, or if the settings cannot be combined.
    """
    if not sizes or advice.job.global_batch_size is not None:
        return []
    unit, largest = int(settings.get("microbatches", 1)), sizes[-1]
    try:
        plan = plan_of(advice, settings)
        missing = _BEYOND - _failing(advice, plan, sizes[-_BEYOND:]).count(True)
        larger: list[int] = []
        for power in range(_DOUBLINGS):
            if missing <= 0:
                break
            block = [size for part in (3, 4) if (size := part * largest * 2**power // 2) % unit == 0]
            for size, fails in zip(block, _failing(advice, plan, block), strict=True):
                if missing > 0:
                    larger.append(size)
                missing -= fails
    except AdvisorError:
        return []
    return larger


def largest_that_fits(advice: Advice, settings: Settings, sizes: Sequence[int]) -> list[int]:
    """The largest batch size between two of `sizes` that fits with the required probability, if it is none of them.

    None if the job fixes the global batch, if all or none of `sizes` fit, or if the settings cannot be combined.
    """
    if not sizes or advice.job.global_batch_size is not None:
        return []
    unit = int(settings.get("microbatches", 1))
    try:
        plan = plan_of(advice, settings)
        fitting = _fitting(advice, plan, sizes)
        if all(fitting) or not any(fitting):
            return []
        last = len(fitting) - 1 - fitting[::-1].index(True)
        if last == len(sizes) - 1:
            return []
        # In units. A few at a time: the interval of a doubling is small or large.
        low, high = sizes[last] // unit, sizes[last + 1] // unit
        while high - low > 1:
            between = sorted({low + (high - low) * part // _PARTS for part in range(1, _PARTS)} - {low})
            fits_there = _fitting(advice, plan, [unit * size for size in between])
            low, high = _narrowed(low, high, between, fits_there)
    except AdvisorError:
        return []
    return [] if low * unit == sizes[last] else [low * unit]


def _narrowed(low: int, high: int, between: Sequence[int], fitting: Sequence[bool]) -> tuple[int, int]:
    """The part of an interval in which sizes cease to fit."""
    for size, is_fitting in zip(between, fitting, strict=True):
        if not is_fitting:
            return low, size
        low = size
    return low, high


def _fitting(advice: Advice, plan: Plan, sizes: Sequence[int]) -> list[bool]:
    """Whether each of some batch sizes fits with the required probability."""
    plans = [replace(plan, batch_size=size) for size in sizes]
    estimates = estimate_many(advice.model, advice.cluster, advice.job, plans)
    return [fits(value, advice.min_fit_probability) for value in estimates]


def _failing(advice: Advice, plan: Plan, sizes: Sequence[int]) -> list[bool]:
    """Whether each of some batch sizes does not fit."""
    plans = [replace(plan, batch_size=size) for size in sizes]
    return [not value.fits for value in estimate_many(advice.model, advice.cluster, advice.job, plans)]
