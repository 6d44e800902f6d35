"""The reason for a global batch in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.guidance.wording import SAME, degree_of_change, percent
from smp_advisor.workload.counts import format_count

if TYPE_CHECKING:
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.search.decision import BatchChoice
    from smp_advisor.workload.model import Model

__all__ = ["batch_change", "batch_reason"]


def batch_reason(model: Model, estimate: Estimate, batch: BatchChoice) -> str:
    """The batch, and a published one for this size: ``4,096 samples (2.1 M tokens). GPT-3 13B used 2 M``."""
    samples = f"{estimate.global_batch_size:,} samples"
    if model.reads_tokens:
        samples += f" ({format_count(estimate.tokens_per_step)} tokens)"
    if batch.policy is None:
        return f"{samples}, as requested."
    published = batch.policy.example.partition(", ")[0]
    return f"{samples}. {published}."


def batch_change(batch: BatchChoice) -> str:
    """Effect of half and twice the batch on the speed, and the cost of the cap where it binds."""
    if batch.policy is None:
        return ""
    sentences = []
    for name, speed in (("Half", batch.half), ("Twice", batch.twice)):
        if speed is not None:
            change = degree_of_change(1, speed, more="faster", less="slower").replace("about the same", "as fast")
            sentences.append(f"{name} the batch is {change}, with as few techniques.")
    if batch.cap_binds and batch.cap_cost >= SAME:
        sentences.append(f"The cap on the batch costs {percent(batch.cap_cost)} of the speed.")
    return " ".join(sentences)
