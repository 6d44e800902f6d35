"""The best plan of each of many clusters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smp_advisor.cluster.cluster import Cluster
from smp_advisor.costs.evaluate import estimate
from smp_advisor.costs.intervals import plan_kinds
from smp_advisor.costs.stack import stack_of
from smp_advisor.errors import AdvisorError, NoPlanFitsError
from smp_advisor.guidance.library_candidates import job_for, library_policy, obstacle
from smp_advisor.guidance.precision import search_in_bf16_if_possible
from smp_advisor.sizing.answer import nothing
from smp_advisor.sizing.cluster_size import ClusterSize
from smp_advisor.sizing.curve import ClusterSizes
from smp_advisor.sizing.places import AUTO, COUNTS, Places

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smp_advisor.guidance.library_candidates import Request
    from smp_advisor.search import Objective
    from smp_advisor.sizing.limits import Limits
    from smp_advisor.sizing.question import Question

Progress = Callable[[float, float, str], Any]
"""Called with the number of finished parts, that of all, and the name of the next one."""

__all__ = ["Progress", "best_on", "compare", "decided"]


def decided(question: Question, places: Places, limits: Limits, progress: Progress | None = None) -> ClusterSizes:
    """Search the clusters of a question, of which one must be the answer, unless there is only one and nothing fits it.

    Raises
    ------
    NoPlanFitsError
        No cluster fits within the limits; with the nearest one, and the number of nodes that would be enough.
    """
    sizes = compare(question, places, limits, progress)
    if sizes.chosen is not None or (places.fixed is not None and not sizes.sizes[0].fits):
        return sizes
    machine, most = places.clusters[-1].instance, max(cluster.nodes for cluster in places.clusters)
    if not limits or any(cluster.instance != machine for cluster in places.clusters):
        raise NoPlanFitsError(nothing(sizes))
    larger = Places(clusters=tuple(Cluster(machine, nodes) for nodes in COUNTS if nodes > most), goal="smallest")
    raise NoPlanFitsError(nothing(sizes, compare(question, larger, limits).chosen))


def compare(question: Question, places: Places, limits: Limits, progress: Progress | None = None) -> ClusterSizes:
    """Search the clusters of a question. An interrupt ends the search with the clusters searched by then.

    Parameters
    ----------
    progress
        Called with the number of searched clusters, that of all, and the name of the next one.

    Raises
    ------
    KeyboardInterrupt
        The search was interrupted before the first cluster was searched.
    """
    sizes: list[ClusterSize] = []
    complete = False
    try:
        for size in _sizes_of(question, places.clusters, progress):
            sizes.append(size)  # noqa: PERF402 (an interrupt keeps the clusters searched by then)
        complete = True
    except KeyboardInterrupt:
        if not sizes:
            raise
    return ClusterSizes(
        model=question.request.model,
        sizes=tuple(sizes),
        goal=places.goal,
        limits=limits,
        requested=places.requested,
        complete=complete,
    )


def _sizes_of(question: Question, clusters: Sequence[Cluster], progress: Progress | None) -> Iterator[ClusterSize]:
    for done, cluster in enumerate(clusters):
        if progress is not None:
            progress(done, len(clusters), f"{cluster.nodes} x {cluster.instance.name}")
        yield best_on(question, cluster)
    if progress is not None:
        progress(len(clusters), len(clusters), "done")


def best_on(question: Question, cluster: Cluster) -> ClusterSize:
    """The best plan on a cluster; that of a later library of the policy only if it gains enough for the policy."""
    here = question.on(cluster)
    names = _libraries(here.request) if question.library == AUTO else [question.library]
    best = ClusterSize(cluster=cluster, library=names[0], job=here.request.job, estimate=None)
    gain = library_policy().gain
    for name in names:
        size = _searched(here.request, name, question.objective)
        faster = size.tokens_per_second >= best.tokens_per_second * (1 + gain) and cluster.gpus > 1
        if not best.fits or (size.fits and faster):
            best = size
    return best


def _libraries(request: Request) -> list[str]:
    """Libraries of the policy that can train the request on its cluster, in order."""
    policy = library_policy()
    usual = [name for name in policy.order if obstacle(name, request) is None]
    return usual or [policy.archived]


def _searched(request: Request, library: str, objective: Objective) -> ClusterSize:
    cluster = request.cluster
    job = job_for(library, request.job, cluster, user_settings=request.user_settings)
    nothing = ClusterSize(cluster=cluster, library=library, job=job, estimate=None)
    if obstacle(library, request) is not None or (job.precision == "bf16" and not cluster.instance.bf16):
        return nothing
    terms = {"library": library, "min_fit_probability": request.min_fit_probability, "pins": request.pins}
    try:
        job, result, _ = search_in_bf16_if_possible(
            request.model, cluster, job, objective, terms, user_settings=request.user_settings
        )
    except AdvisorError:
        return nothing  # a fixed setting that this cluster does not allow
    if not len(result.ranked):
        nearest = float(result.needed_gib.min()) if result.plans_enumerated else None
        return replace(nothing, nearest_gib=nearest)
    layout = result.space.layout.take(result.ranked[:1])
    return ClusterSize(
        cluster=cluster,
        library=library,
        job=job,
        estimate=estimate(request.model, cluster, job, result.best()),
        kind=str(plan_kinds(layout, cluster)[0]),
        stack=stack_of(job, layout).name,
    )
