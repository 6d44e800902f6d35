"""Reasons why a control has a single value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.costs import estimate
from smp_advisor.errors import AdvisorError
from smp_advisor.libraries.controls import SCHEDULE
from smp_advisor.live.settings import moved_settings, plan_of

if TYPE_CHECKING:
    from smp_advisor.advice import Advice
    from smp_advisor.libraries.library import Settings

__all__ = ["BATCH", "why_fixed"]

BATCH = "batch_size"
_NEXT = 2
"""The value after 1 of every degree and number."""


def why_fixed(advice: Advice, settings: Settings, name: str) -> str:
    """Reason why a control of the plan has a single value: the library's own against the next one, as a sentence."""
    total = advice.job.global_batch_size
    if name == BATCH and total is not None:
        return f"The job requires a global batch of {total:,} samples, which decides the batch size."
    if name in SCHEDULE and settings.get("pipeline_parallel_degree") == 1:
        return "Only with pipeline stages."
    try:
        plan = plan_of(advice, moved_settings(advice, settings, name, _NEXT))
        estimate(advice.model, advice.cluster, advice.job, plan)
    except AdvisorError as error:
        what, _, _ = str(error).rpartition(": ")  # the remedy is the present value
        return f"{what}." if what else str(error)
    return "The model, the cluster and the other settings leave one value."
