"""Why the winner won, which batch was chosen, what was left at its default; or why nothing fits and what would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.cluster.cluster import Cluster
from smp_advisor.guidance.amounts import amount, batch_limit, global_batch, unit
from smp_advisor.guidance.wording import gib, percent, plural
from smp_advisor.search import NEAR_BEST, search

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.search import SearchResult
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["batch_note", "defaults", "low_utilisation", "nothing_fits", "why_this_plan"]

_NEAR = f"{100 * NEAR_BEST:.0f} %"

_LOW_MFU = 0.1
"""Model FLOPs utilisation below which a recommendation comes with a warning."""

_LARGER_BY = (2, 4, 8, 16, 32, 64)
"""Multiples of the cluster that are tried when nothing fits."""

_MOST_COUNTS = 16
"""Numbers of nodes tried between the last multiple that does not fit and the first that does."""


_WHOLE_REPLICAS = ("ddp", "training-compiler")
"""Libraries in which more nodes do not help a model to fit."""


def why_this_plan(
    model: Model, best: SearchResult, searched: list[SearchResult], asked: Cluster, probability: float
) -> str:
    """How many plans fit, and by which rule this one is the first of them."""
    top = float(best.scores.tokens_per_second.max())
    near = int((best.scores.tokens_per_second >= top * (1 - NEAR_BEST)).sum())
    fit = (
        f"{len(best.ranked):,} of {best.plans_enumerated:,} plans fit with a probability of at least "
        f"{percent(probability)}"
    )
    if best.objective == "throughput":
        return (
            f"{fit}; {plural(near, 'is', 'are')} within {_NEAR} of the fastest, and of those this one "
            "uses the fewest techniques and leaves the most memory free."
        )
    if best.objective == "cost":
        whose = "yours" if best.cluster == asked else f"{best.cluster.nodes} x {best.cluster.instance.name}"
        return (
            f"{fit}; {len(searched)} clusters of up to {asked.nodes} nodes were compared, and {whose} is the cheapest "
            f"at {best.scores.usd_per_token[0] * 1e6 / amount(model, 1):.3f} USD a million {unit(model)}."
        )
    wanted = {"headroom": "leaves the most memory free", "simplicity": "uses the fewest techniques"}[best.objective]
    return f"{fit}; of those at least half as fast as the fastest, this one {wanted}."


def low_utilisation(estimate: Estimate) -> str:
    """Warning where even the best plan leaves the GPUs idle; empty elsewhere."""
    if estimate.mfu >= _LOW_MFU:
        return ""
    return (
        f"Beware: it reaches {percent(estimate.mfu)} of the GPUs' peak only (MFU); the links of this cluster, or "
        "batches this small, are no match for the model."
    )


def batch_note(model: Model, job: Job, estimate: Estimate) -> str:
    """Which global batch the plan has, and why."""
    chosen = global_batch(model, estimate)
    if job.global_batch_size is not None:
        return f"Every plan keeps your global batch of {chosen}."
    reason = f"larger ones gain less than {_NEAR} or do not fit"
    if estimate.tokens_per_step == job.max_tokens_per_step:
        reason = "no larger one is within that"
    return (
        f"The global batch was free up to {batch_limit(model, job)} a step; the search chose {chosen}: {reason}. Set "
        "global_batch_size if your optimization needs another."
    )


def defaults(
    library: str, model: Model, job: Job, at_default: Collection[str], *, vocab_given: bool
) -> tuple[str, ...]:
    """Settings that nobody gave, as phrases.

    Parameters
    ----------
    at_default
        Names of the job's settings that the user did not give.
    vocab_given
        Whether the user gave the vocabulary of an inferred shape.
    """
    phrases = {
        "precision": f"precision {job.precision}",
        "optimizer": "optimizer Adam",
        "attention": _attention(library, job),
        "sequence_length": f"sequence length {job.sequence_length:,} tokens",
        "global_batch_size": f"global batch free up to {batch_limit(model, job)}",
    }
    said = [
        phrase
        for name, phrase in phrases.items()
        if name in at_default and not (name == "sequence_length" and model.fixed_sequence_length)
    ]
    if model.origin == "inferred" and not vocab_given:
        said.append(f"vocabulary {model.shape.vocab:,}")
    return tuple(said)


def _attention(library: str, job: Job) -> str:
    if job.attention == "fused":
        return "fused attention (PyTorch 2's own)"
    if library == "smp-v1-tensorflow":
        return "eager attention"
    return "eager attention (PyTorch 1.13 has no fused kernel of its own)"


def nothing_fits(
    model: Model, cluster: Cluster, job: Job, result: SearchResult, probability: float, pins: Mapping[str, Any]
) -> str:
    """One sentence: how far the nearest plan is from fitting, and the smallest cluster that would do."""
    where = f"{cluster.nodes} x {cluster.instance.name}"
    held = ", ".join(sorted(pins))
    if not result.plans_enumerated:
        if job.global_batch_size is not None:
            multiple = max(1, round(job.global_batch_size / cluster.gpus)) * cluster.gpus
            other = f"choose a multiple of the replicas, for example {multiple:,}"
            return f"No plan divides a global batch of {job.global_batch_size:,} samples over {where}" + (
                f" with {held} held; free one of them, or {other}." if held else f"; {other}."
            )
        if not held:
            return (
                f"On {where} one sample a replica is already more than max_tokens_per_step "
                f"({job.max_tokens_per_step:,}): raise it, or use fewer nodes."
            )
        return (
            f"No plan is left on {where} with {held} held and at most {batch_limit(model, job)} a step; "
            "free one of them."
        )
    if job.global_batch_size is None:
        remedy = "use GPUs with more memory or a shorter sequence"
    else:
        remedy = "use GPUs with more memory, a shorter sequence or a smaller batch"
    nearest = float(result.needed_gib.min())
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

    if result.space.library in _WHOLE_REPLICAS:
        return f"{said}; every GPU holds a whole replica: divide the model with library='fsdp' or 'smp-v2'."

    def fits(nodes: int) -> bool:
        larger = Cluster(cluster.instance, nodes)
        found = search(model, larger, job, min_fit_probability=probability, pins=pins, library=result.space.library)
        return len(found.ranked) > 0

    enough = next((cluster.nodes * factor for factor in _LARGER_BY if fits(cluster.nodes * factor)), None)
    if enough:
        # Upwards, because which numbers of nodes fit depends on their divisors: some larger ones do not.
        least = max(cluster.nodes, enough // 2) + 1
        step = max(1, (enough - least) // _MOST_COUNTS)
        enough = next((nodes for nodes in range(least, enough, step) if fits(nodes)), enough)
        return f"{said}; {enough} nodes would do."
    return f"{said}; {remedy}."
