"""Errors where no cluster or no plan is the answer: the nearest one, and the ways out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.cluster.cluster import Cluster
from smp_advisor.costs.evaluate import fit_probability
from smp_advisor.errors import NoPlanFitsError
from smp_advisor.guidance.amounts import batch_limit
from smp_advisor.guidance.wording import gib, percent, plural, probability
from smp_advisor.libraries.registry import get_library, libraries
from smp_advisor.sizing.answer import nothing
from smp_advisor.sizing.places import COUNTS, Places
from smp_advisor.sizing.sweep import compare
from smp_advisor.sizing.ways import ways_out

if TYPE_CHECKING:
    from smp_advisor.guidance.library_candidates import Request
    from smp_advisor.search import SearchResult
    from smp_advisor.sizing.curve import ClusterSizes
    from smp_advisor.sizing.limits import Limits
    from smp_advisor.sizing.question import Question
    from smp_advisor.sizing.sweep import Progress
    from smp_advisor.sizing.ways import WaysOut

__all__ = ["decided", "nothing_fits"]

_LONGEST = 370
"""Characters of the sentence; the error has all ways out."""


def decided(question: Question, places: Places, limits: Limits, progress: Progress | None = None) -> ClusterSizes:
    """Compare the clusters of a question, of which one must be the answer. A single one without a plan is no error.

    Raises
    ------
    NoPlanFitsError
        No cluster fits within the limits; with the nearest one, and what would be enough.
    """
    sizes = compare(question, places, limits, progress)
    if sizes.chosen is not None or (places.fixed is not None and not sizes.sizes[0].fits):
        return sizes
    if not any(size.fits for size in sizes.sizes):
        nearest = sizes.nearest
        ways = None if nearest is None else ways_out(question.on(nearest.cluster), nearest.nearest_gib)
        changes = f"; changes that fit there: {ways.words}" if ways is not None and ways.words else ""
        raise NoPlanFitsError(f"{nothing(sizes)}{changes}{_enough(ways)}.", ways)
    machine, most = places.clusters[-1].instance, max(cluster.nodes for cluster in places.clusters)
    if any(cluster.instance != machine for cluster in places.clusters):
        raise NoPlanFitsError(f"{nothing(sizes)}.")
    larger = Places(clusters=tuple(Cluster(machine, nodes) for nodes in COUNTS if nodes > most), goal="smallest")
    raise NoPlanFitsError(f"{nothing(sizes, compare(question, larger, limits).chosen)}.")


def nothing_fits(question: Question, result: SearchResult) -> NoPlanFitsError:
    """The error with the ways out, which `NoPlanFitsError.ways_out` has as a table.

    Parameters
    ----------
    question
        The request on its cluster.
    result
        The search without a plan that fits.
    """
    request = question.request
    cluster, model = request.cluster, request.model
    place = f"{cluster.nodes} x {cluster.instance.name}"
    row = int(result.needed_gib.argmin()) if result.plans_enumerated else 0
    nearest = float(result.needed_gib[row]) if result.plans_enumerated else None
    ways = ways_out(question, nearest)
    if nearest is None:
        return NoPlanFitsError(_no_plan(request, place), ways)
    usable = cluster.instance.usable_gpu_memory_gib
    chance = fit_probability(float(result.margin[row]))
    if nearest > usable:
        shortfall = f"needs {gib(nearest)} and the GPU has {gib(usable)}"
    elif chance < request.min_fit_probability:
        shortfall = f"leaves {gib(usable - nearest)} free and fits with a probability of {probability(chance)}"
    else:
        shortfall = "leaves GPU memory free, and needs more host memory than a node has"
    sentence = (
        f"None of {result.plans_enumerated:,} plans fits {model.name} on {place} with a probability of"
        f" {percent(request.min_fit_probability)}: the nearest {shortfall}"
    )
    enough, changes = _enough(ways), ways.words
    while changes and len(sentence) + len(changes) + len(enough) > _LONGEST:
        changes = changes.rpartition(", ")[0]
    if not get_library(result.space.library).divides_model and ways.of("library") is None:
        there = f"; changes that fit: {changes}" if changes else ""
        return NoPlanFitsError(f"{sentence}; {_remedy(request, result.space.library)}{there}.", ways)
    if changes:
        return NoPlanFitsError(f"{sentence}; changes that fit: {changes}{enough}.", ways)
    if enough:
        return NoPlanFitsError(f"{sentence}{enough}.", ways)
    return NoPlanFitsError(f"{sentence}; {_remedy(request, result.space.library)}.", ways)


def _enough(ways: WaysOut | None) -> str:
    nodes = None if ways is None else ways.of("nodes")
    return "" if nodes is None else f"; {nodes.words} would be enough"


def _remedy(request: Request, library: str) -> str:
    if not get_library(library).divides_model:
        names = [f"'{record.name}'" for record in libraries() if record.divides_model and record.launcher == "torchrun"]
        return f"every GPU holds an entire replica: divide the model with library={' or '.join(names)}"
    smaller_batch = "" if request.job.global_batch_size is None else " or a smaller batch"
    comma = "," if smaller_batch else " or"
    return f"use GPUs with more memory{comma} a shorter sequence{smaller_batch}"


def _no_plan(request: Request, place: str) -> str:
    """Why the library has no plan at all on a cluster."""
    job, pinned = request.job, ", ".join(sorted(request.pins))
    if job.global_batch_size is not None:
        multiple = max(1, round(job.global_batch_size / request.cluster.gpus)) * request.cluster.gpus
        remedy = f"choose a multiple of the replicas, for example {multiple:,}"
        return f"No plan divides a global batch of {plural(job.global_batch_size, 'sample')} over {place}" + (
            f" with {pinned} fixed; free one of them, or {remedy}." if pinned else f"; {remedy}."
        )
    if not pinned:
        return (
            f"On {place} one sample per replica already exceeds max_tokens_per_step ({job.max_tokens_per_step:,}):"
            " raise it, or use fewer nodes."
        )
    return (
        f"No plan is left on {place} with {pinned} fixed and at most {batch_limit(request.model, job)} per step; free"
        " one of them."
    )
