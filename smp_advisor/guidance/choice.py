"""Why the winner won, which batch was chosen, what was left at its default; or why nothing fits and what would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.cluster.cluster import Cluster
from smp_advisor.guidance.wording import gib, percent
from smp_advisor.search import NEAR_BEST, search

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from smp_advisor.search import SearchResult
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["batch_note", "defaults", "nothing_fits", "why_this_plan"]

_LARGER_BY = (2, 4, 8, 16, 32, 64)
"""Multiples of the cluster that are tried when nothing fits."""


def why_this_plan(best: SearchResult, searched: list[SearchResult], asked: Cluster, probability: float) -> str:
    """How many plans fit, and by which rule this one is the first of them."""
    top = float(best.scores.tokens_per_second.max())
    near = int((best.scores.tokens_per_second >= top * (1 - NEAR_BEST)).sum())
    fit = (
        f"{len(best.ranked):,} of {best.plans_enumerated:,} plans fit with a probability of at least "
        f"{percent(probability)}"
    )
    if best.objective == "throughput":
        return (
            f"{fit}; {near:,} of them are within {percent(NEAR_BEST)} of the fastest, and of those this one uses the "
            "fewest techniques and leaves the most memory free."
        )
    if best.objective == "cost":
        whose = "yours" if best.cluster == asked else f"{best.cluster.nodes} x {best.cluster.instance.name}"
        return (
            f"{fit}; {len(searched)} clusters of up to {asked.nodes} nodes were compared, and {whose} is the cheapest "
            f"at {best.scores.usd_per_token[0] * 1e6:.3f} USD a million tokens."
        )
    wanted = {"headroom": "leaves the most memory free", "simplicity": "uses the fewest techniques"}[best.objective]
    return f"{fit}; of those at least half as fast as the fastest, this one {wanted}."


def batch_note(job: Job, batch: int, tokens: int) -> str:
    """Which global batch the plan has, and why."""
    if job.global_batch_size is not None:
        return f"Every plan keeps your global batch of {batch:,} samples ({tokens:,} tokens)."
    return (
        f"The global batch was free up to {job.max_tokens_per_step:,} tokens a step; the search chose {batch:,} "
        f"samples ({tokens:,} tokens): larger ones gain less than {percent(NEAR_BEST)} or leave less memory free. Set "
        "global_batch_size if your optimization needs another."
    )


def defaults(model: Model, job: Job, given: Collection[str]) -> tuple[str, ...]:
    """Settings that nobody gave, as phrases.

    Parameters
    ----------
    given
        Names of the settings that the user did give.
    """
    at_default = set(job.defaulted()) - set(given)
    phrases = {
        "precision": f"precision {job.precision}",
        "optimizer": "optimizer Adam",
        "attention": "eager attention (PyTorch 1.13 has no fused kernel of its own)",
        "sequence_length": f"sequence length {job.sequence_length:,} tokens",
        "global_batch_size": f"global batch free up to {job.max_tokens_per_step:,} tokens",
    }
    said = [
        phrase
        for name, phrase in phrases.items()
        if name in at_default and not (name == "sequence_length" and model.fixed_sequence_length)
    ]
    if model.origin == "inferred" and "vocab" not in given:
        said.append(f"vocabulary {model.shape.vocab:,}")
    return tuple(said)


def nothing_fits(
    model: Model, cluster: Cluster, job: Job, result: SearchResult, probability: float, pins: Mapping[str, Any]
) -> str:
    """One sentence: how far the nearest plan is from fitting, and the smallest cluster that would do."""
    where = f"{cluster.nodes} x {cluster.instance.name}"
    held = ", ".join(sorted(pins))
    if not result.plans_enumerated:
        if job.global_batch_size is not None:
            multiple = max(1, round(job.global_batch_size / cluster.gpus)) * cluster.gpus
            return (
                f"No plan divides a global batch of {job.global_batch_size:,} samples over {where}"
                f"{f' with {held} held' if held else ''}; choose a multiple of the replicas, for example {multiple:,}."
            )
        return (
            f"No plan is left on {where} with {held or 'these settings'} held and at most "
            f"{job.max_tokens_per_step:,} tokens a step; free one of them."
        )
    nearest = float(result.peak_gib.min())
    usable = cluster.instance.usable_gpu_memory_gib
    short = (
        f"needs {gib(nearest)} of the GPU's {gib(usable)}"
        if nearest > usable
        else f"leaves {gib(usable - nearest)} free, which is too little for that"
    )
    said = (
        f"None of {result.plans_enumerated:,} plans fits {model.name} on {where} with a probability of "
        f"{percent(probability)}: the nearest {short}"
    )
    for factor in _LARGER_BY:
        larger = Cluster(cluster.instance, cluster.nodes * factor)
        if len(search(model, larger, job, min_fit_probability=probability, pins=pins).ranked):
            return f"{said}; {larger.nodes} nodes would do."
    return f"{said}; use GPUs with more memory, a shorter sequence or a smaller batch."
