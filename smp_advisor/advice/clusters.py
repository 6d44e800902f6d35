"""Other clusters for an advice: the best plan on each of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from smp_advisor.advice.request import question_of
from smp_advisor.search.clusters import COUNTS, Limits, places_of
from smp_advisor.search.sizes import compare

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.advice.recommendation import Recommendation
    from smp_advisor.cluster import Instance
    from smp_advisor.search.sizes import ClusterSizes, Progress
    from smp_advisor.session import Advice


def compare_clusters(
    advice: Recommendation | Advice,
    instances: Instance | str | Sequence[Instance | str] | None = None,
    counts: Sequence[int] | None = None,
    *,
    max_days: float | str | None = None,
    max_usd: float | str | None = None,
    max_gpu_hours: float | str | None = None,
    on_progress: Progress | None = None,
) -> ClusterSizes:
    """Return days, cost and memory of the best plan on other clusters, and the knee of each instance type.

    Parameters
    ----------
    instances
        An instance type, several, or ``"any"``; the advice's own type if None.
    counts
        Numbers of nodes; 16 numbers from 1 to 256 if None.
    max_days, max_usd, max_gpu_hours
        Deadline, budget and GPU-hours of the run.
    on_progress
        As for `advise`. An interrupt ends the comparison with the clusters compared by then.

    Raises
    ------
    AdvisorError
        The clusters or limits are not valid.

    Examples
    --------
    >>> import smp_advisor as smpa
    >>> advice = smpa.advise("1.3B", "ml.p4d.24xlarge", library="fsdp", tokens="20B")
    >>> [size.cluster.nodes for size in advice.compare_clusters(counts=(1, 2)).sizes]
    [1, 2]
    """
    question = question_of(advice.request, advice.cluster).training(calibration=advice.job.calibration)
    limits = Limits.of(question.request.job, max_days=max_days, max_usd=max_usd, max_gpu_hours=max_gpu_hours)
    kinds = advice.cluster.instance if instances is None else instances
    places = places_of(kinds, None, limits=limits, library=question.library, counts=counts or COUNTS)
    clusters = tuple(dict.fromkeys((*places.clusters, advice.cluster)))
    here = replace(places, clusters=clusters, goal="cheapest", requested=advice.cluster)
    return compare(question, here, limits, on_progress)
