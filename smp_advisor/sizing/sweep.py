"""Comparison of many clusters, with progress and a way to stop it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from smp_advisor.sizing.best_plan import best_on
from smp_advisor.sizing.curve import ClusterSizes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.sizing.cluster_size import ClusterSize
    from smp_advisor.sizing.limits import Limits
    from smp_advisor.sizing.places import Places
    from smp_advisor.sizing.question import Question

Progress = Callable[[float, float, str], Any]
"""Called with the number of finished parts, that of all, and the name of the next one."""

__all__ = ["Progress", "compare"]


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
