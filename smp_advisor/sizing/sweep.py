"""The best plan of each of many clusters."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smp_advisor.cluster.cluster import Cluster
from smp_advisor.costs.evaluate import estimate
from smp_advisor.costs.intervals import plan_kinds
from smp_advisor.costs.stack import stack_of
from smp_advisor.errors import AdvisorError, NoPlanFitsError
from smp_advisor.guidance.library_candidates import Request, job_for, library_policy, obstacle
from smp_advisor.search.search import search
from smp_advisor.sizing.answer import nothing
from smp_advisor.sizing.cluster_size import ClusterSize
from smp_advisor.sizing.curve import ClusterSizes
from smp_advisor.sizing.places import COUNTS, Places

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from smp_advisor.search import SearchResult
    from smp_advisor.sizing.limits import Limits
    from smp_advisor.workload.job import Job

    Progress = Callable[[float, float, str], Any]

__all__ = ["best_on", "compare", "decided"]


def decided(
    request: Request, places: Places, library: str, limits: Limits, progress: Progress | None = None
) -> ClusterSizes:
    """Search the clusters of a request, of which one must be the answer, unless there is only one and nothing fits it.

    Raises
    ------
    NoPlanFitsError
        No cluster fits within the limits; with the nearest one, and the number of nodes that would be enough.
    """
    sizes = compare(request, places, library, limits, progress)
    if sizes.chosen is not None or (places.fixed is not None and not sizes.sizes[0].fits):
        return sizes
    machine, most = places.clusters[-1].instance, max(cluster.nodes for cluster in places.clusters)
    if not limits or any(cluster.instance != machine for cluster in places.clusters):
        raise NoPlanFitsError(nothing(sizes))
    larger = Places(clusters=tuple(Cluster(machine, nodes) for nodes in COUNTS if nodes > most), goal="smallest")
    raise NoPlanFitsError(nothing(sizes, compare(request, larger, library, limits).chosen))


def compare(
    request: Request, places: Places, library: str, limits: Limits, progress: Progress | None = None
) -> ClusterSizes:
    """Search the clusters of a request. An interrupt ends the search with the clusters searched by then.

    Parameters
    ----------
    request
        Model, job and fixed settings; its cluster does not count.
    library
        Name of a library, or ``auto``.
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
        for size in sizes_of(request, places.clusters, library, progress):
            sizes.append(size)  # noqa: PERF402 (an interrupt keeps the clusters searched by then)
        complete = True
    except KeyboardInterrupt:
        if not sizes:
            raise
    return ClusterSizes(
        model=request.model,
        sizes=tuple(sizes),
        goal=places.goal,
        limits=limits,
        requested=places.requested,
        complete=complete,
    )


def sizes_of(
    request: Request, clusters: Sequence[Cluster], library: str, progress: Progress | None = None
) -> Iterator[ClusterSize]:
    """Search clusters one after the other."""
    for done, cluster in enumerate(clusters):
        if progress is not None:
            progress(done, len(clusters), f"{cluster.nodes} x {cluster.instance.name}")
        yield best_on(request, cluster, library)
    if progress is not None:
        progress(len(clusters), len(clusters), "done")


def best_on(request: Request, cluster: Cluster, library: str) -> ClusterSize:
    """The best plan on a cluster; that of a later library of the policy only if it gains enough for the policy."""
    here = replace(request, cluster=cluster)
    names = _libraries(here) if library == "auto" else [library]
    best = ClusterSize(cluster=cluster, library=names[0], job=request.job, estimate=None)
    gain = library_policy().gain
    for name in names:
        size = _searched(here, name)
        faster = size.tokens_per_second >= best.tokens_per_second * (1 + gain) and cluster.gpus > 1
        if not best.fits or (size.fits and faster):
            best = size
    return best


def _libraries(request: Request) -> list[str]:
    """Libraries of the policy that can train the request on its cluster, in order."""
    policy = library_policy()
    usual = [name for name in policy.order if obstacle(name, request) is None]
    return usual or [policy.archived]


def _searched(request: Request, library: str) -> ClusterSize:
    cluster = request.cluster
    job = job_for(library, request.job, cluster, user_settings=request.user_settings)
    nothing = ClusterSize(cluster=cluster, library=library, job=job, estimate=None)
    if obstacle(library, request) is not None or (job.precision == "bf16" and not cluster.instance.bf16):
        return nothing
    try:
        result = search(
            request.model,
            cluster,
            job,
            min_fit_probability=request.min_fit_probability,
            pins=request.pins,
            library=library,
        )
    except AdvisorError:
        return nothing  # a fixed setting that this cluster does not allow
    if not len(result.ranked):
        nearest = float(result.needed_gib.min()) if result.plans_enumerated else None
        return ClusterSize(cluster=cluster, library=library, job=job, estimate=None, nearest_gib=nearest)
    kind, stack = _kind(result, job)
    return ClusterSize(
        cluster=cluster,
        library=library,
        job=job,
        estimate=estimate(request.model, cluster, job, result.best()),
        kind=kind,
        stack=stack,
    )


def _kind(result: SearchResult, job: Job) -> tuple[str, str]:
    """Kind of the best plan, and that of its code."""
    layout = result.space.layout.take(result.ranked[:1])
    return str(plan_kinds(layout, result.cluster)[0]), stack_of(job, layout).name
