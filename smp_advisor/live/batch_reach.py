"""Batch sizes above the limit of a search, up to those that do not fit, for the control of the batch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from smp_advisor.costs import estimate_many
from smp_advisor.errors import AdvisorError
from smp_advisor.live.settings import plan_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.advice import Advice
    from smp_advisor.libraries.control_codec import Settings
    from smp_advisor.libraries.plan import Plan

__all__ = ["sizes_beyond"]

_DOUBLINGS = 12
"""Beyond them, memory does not depend on the batch."""
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


def _failing(advice: Advice, plan: Plan, sizes: Sequence[int]) -> list[bool]:
    """Whether each of some batch sizes does not fit."""
    plans = [replace(plan, batch_size=size) for size in sizes]
    return [not value.fits for value in estimate_many(advice.model, advice.cluster, advice.job, plans)]
