"""Clusters that the cost objective compares: instance types and counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.cluster.cluster import Cluster
from smp_advisor.libraries.support import suggested_instances
from smp_advisor.search.rank import NEAR_BEST
from smp_advisor.search.search import SearchResult, search

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["comparable_clusters", "search_cheapest"]


def comparable_clusters(cluster: Cluster, library: str) -> list[Cluster]:
    """Clusters up to a given one: its instance type, and the library's other types with a known price.

    Counts are the powers of two up to the given number of nodes, and that number.
    """
    counts = sorted({2**k for k in range(cluster.nodes.bit_length())} | {cluster.nodes})
    # Types that are being phased out are compared only if the user requests them.
    priced = [instance for instance in suggested_instances(library) if instance.usd_per_hour is not None]
    instances = [cluster.instance, *(instance for instance in priced if instance.name != cluster.instance.name)]
    return [Cluster(instance, count) for instance in instances for count in counts if count <= cluster.nodes]


def search_cheapest(
    model: Model,
    cluster: Cluster,
    job: Job,
    *,
    library: str,
    min_fit_probability: float,
    pins: Mapping[str, Any] | None = None,
) -> tuple[SearchResult | None, list[SearchResult]]:
    """Search all comparable clusters for the plan with the lowest cost per token; return its result and all results.

    Clusters within 3 % of the cheapest count as equal: among them the requested one wins, then its instance type, then
    the lowest price per hour. None if nothing fits anywhere.
    """
    results = [
        search(
            model, candidate, job, objective="cost", min_fit_probability=min_fit_probability, pins=pins, library=library
        )
        for candidate in comparable_clusters(cluster, library)
        if not (job.precision == "bf16" and not candidate.instance.bf16)
    ]
    fitting = [r for r in results if len(r.ranked) and r.scores.usd_per_token[0] < float("inf")]
    if not fitting:
        return None, results
    least = min(float(r.scores.usd_per_token[0]) for r in fitting)
    near = [r for r in fitting if r.scores.usd_per_token[0] <= least * (1 + NEAR_BEST)]
    same = cluster.instance.name
    best = min(
        near, key=lambda r: (r.cluster != cluster, r.cluster.instance.name != same, r.cluster.usd_per_hour or 0.0)
    )
    return best, results
