"""Reasons for the recommended plan: its rank, its batch, the defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.libraries.library import get_library
from smp_advisor.search import NEAR_BEST, TECHNIQUE_GAIN, TECHNIQUE_PROBABILITY, fp16_reason, policy
from smp_advisor.wording import batch_limit, global_batch, listed, percent, utilization
from smp_advisor.workload.stack import stack
from smp_advisor.workload.training_settings import training_settings

if TYPE_CHECKING:
    from collections.abc import Collection

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.search import BatchChoice, SearchResult
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["batch_note", "defaults", "low_utilisation", "why_this_plan"]

_NEAR = f"{100 * NEAR_BEST:.0f} %"

_LOW_MFU = 0.1
"""Model FLOPs utilization below which a recommendation has a warning."""


def why_this_plan(best: SearchResult, probability: float) -> str:
    """How many plans fit, and by which rule this one is the first of them."""
    fit = (
        f"{len(best.ranked):,} of {best.plans_enumerated:,} plans fit with a probability of at least "
        f"{percent(probability)}."
    )
    if best.objective == "throughput":
        return f"{fit} {_rank(best)}"
    if best.objective == "cost":
        return fit
    merit = {"headroom": "leaves the most memory free", "simplicity": "uses the fewest techniques"}[best.objective]
    return f"{fit} Of the plans at least half as fast as the fastest, this one {merit}."


def low_utilisation(estimate: Estimate) -> str:
    """Warning if even the best plan leaves the GPUs idle; empty otherwise."""
    if estimate.mfu >= _LOW_MFU:
        return ""
    return (
        f"Warning: the plan reaches only {utilization(estimate)} of the GPUs' peak (MFU). The links of this"
        " cluster are too slow for the model, or the batches are too small."
    )


def _rank(best: SearchResult) -> str:
    """Rule by which the first plan comes first."""
    scores = best.scores
    top = int(scores.tokens_per_second.argmax())
    faster = float(scores.tokens_per_second[top] / scores.tokens_per_second[0]) - 1
    if faster <= NEAR_BEST:
        return (
            f"This one is within {_NEAR} of the fastest. Equal plans rank by fewest techniques, then by the smallest"
            " communication groups, the smallest batch and the fewest microbatches."
        )
    more = int(scores.techniques[top] - scores.techniques[0])
    larger = scores.tokens_per_step[top] > scores.tokens_per_step[0]
    wider = scores.nodes[top] > scores.nodes[0]
    differences = [
        *([f"{more} more {'technique' if more == 1 else 'techniques'}"] if more > 0 else []),
        *(["a larger batch"] if larger else []),
        *([f"communication over {scores.nodes[top]:,} nodes (vs {scores.nodes[0]:,})"] if wider else []),
    ]
    has = f", with {listed(differences)}" if differences else ""
    return (
        f"The fastest is estimated {percent(faster)} faster{has}. A technique must gain at least"
        f" {percent(TECHNIQUE_GAIN)} over the best plan without it, communication over more nodes"
        f" {percent(policy().node_gain)}, and a family of plans must be faster with a probability of at least"
        f" {percent(TECHNIQUE_PROBABILITY)}. Equal plans rank by the smallest communication"
        " groups, the smallest batch and the fewest microbatches."
    )


def batch_note(model: Model, job: Job, estimate: Estimate, batch: BatchChoice) -> str:
    """The plan's global batch, and the reason for it."""
    chosen = global_batch(model, estimate)
    if batch.policy is None:
        return f"Every plan keeps your global batch of {chosen}."
    sentences = [f"You set no global batch size. The search chose {chosen}; {batch.policy.example}."]
    limit = f"the limit of {batch_limit(model, job)}"
    if batch.cap_binds:
        cost = f"costs {percent(batch.cap_cost)} of speed" if batch.cap_cost >= 0.005 else "costs no speed"
        sentences.append(f"Twice the batch would exceed {limit}, which {cost}.")
    elif batch.larger_gain < NEAR_BEST:
        sentences.append(f"Twice the batch and more, up to {limit}, gain less than {_NEAR} or do not fit.")
    elif batch.twice is not None:
        sentences.append(f"Twice the batch changes the speed by {_change(batch.twice)}.")
    if batch.half is not None:
        sentences.append(f"Half the batch changes it by {_change(batch.half)}.")
    return " ".join(sentences)


def _change(ratio: float) -> str:
    """A ratio as a change: ``+4 %``."""
    change = round(100 * (ratio - 1))
    return f"{change:+d} %" if change else "less than 1 %"


def defaults(
    library: str,
    model: Model,
    cluster: Cluster,
    job: Job,
    at_default: Collection[str],
    *,
    vocab_given: bool,
    profiled_length: int | None = None,
) -> tuple[str, ...]:
    """Settings that the user left at their default, as phrases.

    Parameters
    ----------
    at_default
        Names of the job's settings that the user did not set.
    vocab_given
        Whether the user set the vocabulary of an inferred shape.
    profiled_length
        Sequence length of the model's profile, if it has one.
    """
    length = f"sequence length {job.sequence_length:,} tokens"
    if profiled_length is not None:
        same = profiled_length == job.sequence_length
        length += " (as profiled)" if same else f" (profiled with {profiled_length:,})"
    phrases = {
        "precision": f"precision {job.precision}"
        + (f" ({fp16_reason(library, cluster)})" if job.precision == "fp16" else ""),
        "optimizer": "optimizer Adam",
        "attention": _attention(library, job),
        "stack": f"code of the exported script ({stack(get_library(library).stack).title})",
        **{
            name: setting.phrase
            for name, setting in training_settings().items()
            if setting.phrase and name in get_library(library).training_settings
        },
        "sequence_length": length,
        "global_batch_size": f"global batch free up to {batch_limit(model, job)}",
    }
    result = [
        phrase
        for name, phrase in phrases.items()
        if name in at_default and not (name == "sequence_length" and model.fixed_sequence_length)
    ]
    if model.origin == "inferred" and not vocab_given:
        result.append(f"vocabulary {model.shape.vocab:,}")
    return tuple(result)


def _attention(library: str, job: Job) -> str:
    if job.attention == "fused":
        return "fused attention (PyTorch 2's own)"
    if get_library(library).framework == "tensorflow":
        return "eager attention"
    return "eager attention (PyTorch 1.13 has no fused kernel of its own)"
