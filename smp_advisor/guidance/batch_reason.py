"""The reason for a global batch in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.search import NEAR_BEST
from smp_advisor.workload.counts import format_count

if TYPE_CHECKING:
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.search.decision import BatchChoice
    from smp_advisor.workload.model import Model

__all__ = ["batch_reason"]

_NEAR_TARGET = 1.5
"""Largest ratio of a batch and the published one that counts as the same."""


def batch_reason(model: Model, estimate: Estimate, batch: BatchChoice) -> str:
    """The batch, and a published one for this size: ``4,096 samples (2.1 M tokens). GPT-3 13B used 2 M``."""
    samples = f"{estimate.global_batch_size:,} samples"
    if model.reads_tokens:
        samples += f" ({format_count(estimate.tokens_per_step)} tokens)"
    if batch.policy is None:
        return f"{samples}, as requested."
    published = batch.policy.example.partition(", ")[0]
    ratio = batch.tokens_per_step / batch.policy.target_tokens
    reason = ""
    if ratio > _NEAR_TARGET and batch.half is not None and batch.half < 1 - NEAR_BEST:
        reason = ", because half of it would be slower"
    elif ratio < 1 / _NEAR_TARGET and batch.larger_gain < NEAR_BEST:
        reason = ", because larger ones are not noticeably faster"
    elif ratio < 1 / _NEAR_TARGET and batch.twice is not None and batch.twice < 1 + NEAR_BEST:
        reason = ", because twice the batch is faster only with more techniques"
    return f"{samples}{reason}. {published}."
