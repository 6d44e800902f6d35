"""Amounts of training data in words: in tokens, or in samples for models that read no tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.guidance.wording import plural

if TYPE_CHECKING:
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["amount", "batch_limit", "global_batch", "unit"]


def unit(model: Model) -> str:
    """Unit of the amounts: ``tokens``, or ``samples`` (images, for example)."""
    return "tokens" if model.reads_tokens else "samples"


def amount(model: Model, tokens: float) -> float:
    """Convert tokens to the model's `unit`."""
    return tokens if model.reads_tokens else tokens / (model.fixed_sequence_length or 1)


def batch_limit(model: Model, job: Job) -> str:
    """Upper limit of a free global batch: ``4,000,000 tokens``."""
    return f"{int(amount(model, job.max_tokens_per_step)):,} {unit(model)}"


def global_batch(model: Model, estimate: Estimate) -> str:
    """A global batch: ``6,144 samples (3,145,728 tokens)``."""
    samples = plural(estimate.global_batch_size, "sample")
    return f"{samples} ({estimate.tokens_per_step:,} tokens)" if model.reads_tokens else samples
