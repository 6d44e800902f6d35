"""The reason for a global batch in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.search import NEAR_BEST
from smp_advisor.workload.counts import format_count

if TYPE_CHECKING:
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.search import BatchChoice, BatchPolicy
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
    elif ratio < 1 / _NEAR_TARGET:
        reason = _smaller(estimate, batch, batch.policy)
    return f"{samples}{reason}. {published}."


def _smaller(estimate: Estimate, batch: BatchChoice, policy: BatchPolicy) -> str:
    """Why a batch is smaller than the published one."""
    if batch.cap_tokens is not None and 2 * batch.tokens_per_step > batch.cap_tokens:
        return f", because the limit is {format_count(batch.cap_tokens)} tokens per step"
    if batch.twice is None:
        return ", because no plan with twice the batch fits"
    if 2 * estimate.step_seconds / batch.twice > policy.longest_step_seconds:
        return (
            f", because a step with twice the batch would take more than {policy.longest_step_seconds / 60:g} minutes"
        )
    if batch.larger_gain < NEAR_BEST:
        return ", because larger ones are not noticeably faster"
    if batch.twice < 1 + NEAR_BEST:
        return ", because twice the batch is faster only with more techniques"
    return ""
