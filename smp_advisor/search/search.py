"""Search: enumerate plans, estimate memory, drop those that do not fit, estimate time, rank."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from smp_advisor.costs.evaluate import HOST_SHARE, learned_width, memory_columns, seconds_columns
from smp_advisor.costs.intervals import DIVISIONS, kind_names, plan_divisions
from smp_advisor.costs.memory import GIB
from smp_advisor.costs.pressure import pressure_factor
from smp_advisor.costs.stack import stack_of
from smp_advisor.costs.uncertainty import comparison_spread
from smp_advisor.costs.world import World
from smp_advisor.libraries.layout import COLUMNS
from smp_advisor.libraries.registry import DEFAULT_LIBRARY
from smp_advisor.libraries.space import Space, enumerate_plans
from smp_advisor.search.batch_policy import batch_policy
from smp_advisor.search.policy import policy, published_for
from smp_advisor.search.rank import (
    Objective,
    Resolution,
    Scores,
    combinations,
    communication_span,
    first_of_each,
    order,
    techniques,
    undominated_first,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

    Floats = NDArray[np.float64]

__all__ = ["SearchResult", "search"]


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """All plans of one cluster, scored; those that fit, ranked."""

    cluster: Cluster
    objective: Objective
    space: Space
    peak_gib: Floats
    """Peak memory of every plan, shape (n,), with the free blocks that the allocator keeps while there is room."""
    needed_gib: Floats
    """Memory per GPU that every plan needs, shape (n,)."""
    margin: Floats
    """Free memory of every plan in standard deviations of its error, shape (n,)."""
    ranked: NDArray[np.intp]
    """Rows that fit with the required probability, best first."""
    scores: Scores
    """Scores of `ranked`, in the same order."""
    step_seconds: Floats
    """Step times of `ranked`, in the same order."""

    @property
    def plans_enumerated(self) -> int:
        """Number of plans that the library can express here."""
        return len(self.space)

    def best(self) -> Plan:
        """The best plan."""
        return self.space.plan(int(self.ranked[0]))

    def has_best_of(self, result: SearchResult) -> bool:
        """Whether the best plans of two results are the same, but for their precision."""
        mine, theirs = (of.space.layout.take(of.ranked[:1]) for of in (self, result))
        return self.cluster == result.cluster and all(getattr(mine, name) == getattr(theirs, name) for name in COLUMNS)


def search(
    model: Model,
    cluster: Cluster,
    job: Job,
    *,
    objective: Objective = "throughput",
    min_fit_probability: float = 0.95,
    pins: Mapping[str, Any] | None = None,
    library: str = DEFAULT_LIBRARY,
) -> SearchResult:
    """Score every plan of a cluster and rank those that fit.

    Memory is estimated for all plans, time for those that fit with `min_fit_probability` in GPU and host memory.
    """
    space = enumerate_plans(model, cluster, job, pins, library=library)
    memory = memory_columns(model, cluster, job, space.layout)
    usable = cluster.instance.usable_gpu_memory_gib * GIB
    host_fits = memory.host_bytes_per_node <= HOST_SHARE * cluster.instance.host_memory_gib * GIB
    rows = np.flatnonzero((memory.margin >= NormalDist().inv_cdf(min_fit_probability)) & host_fits)
    layout = space.layout.take(rows)
    seconds = sum(seconds_columns(model, cluster, job, layout).values(), np.zeros(len(rows)))
    seconds = seconds * pressure_factor(memory.needed_bytes[rows], usable)
    scores = _scores(model, cluster, job, library, layout, seconds, 1 - memory.needed_bytes[rows] / usable)
    best_first = np.empty(0, dtype=np.intp)
    if len(rows):
        best_first = order(scores, objective, _resolution(model, cluster, job, layout, scores))
        if objective in ("throughput", "cost"):
            best_first = undominated_first(best_first, scores, combinations(layout))
    return SearchResult(
        cluster=cluster,
        objective=objective,
        space=space,
        peak_gib=memory.peak_bytes / GIB,
        needed_gib=memory.needed_bytes / GIB,
        margin=memory.margin,
        ranked=rows[best_first],
        scores=scores.take(best_first),
        step_seconds=seconds[best_first],
    )


def _scores(
    model: Model, cluster: Cluster, job: Job, library: str, layout: Layout, seconds: Floats, headroom: Floats
) -> Scores:
    """Values by which plans are ranked."""
    world = World.of(model, cluster, job, layout)
    replicas = np.asarray(world.replicas, dtype=np.int64)
    tokens = layout.batch_samples * replicas * model.sequence_length(job.sequence_length)
    speed, price = tokens / seconds, cluster.instance.usd_per_hour
    missing, worth = np.zeros(len(tokens)), np.ones(len(tokens))
    if job.global_batch_size is None:
        batch = batch_policy(model, job)
        missing = batch.doublings_missing(tokens, speed, job.max_tokens_per_step)
        worth = batch.worth(tokens, missing)
    span = communication_span(world, layout)
    published = published_for(library, model.parameter_count)
    return Scores(
        tokens_per_second=speed,
        usd_per_token=np.full(len(tokens), np.inf) if price is None else price * cluster.nodes / 3600 / speed,
        headroom=headroom,
        techniques=techniques(layout),
        tokens_per_step=tokens,
        worth=worth,
        doublings_missing=missing,
        span=span,
        nodes=-(-span // cluster.instance.gpus),
        microbatches=layout.microbatches,
        pipelined=layout.pipeline_parallel_degree > 1,
        published=np.ones(len(tokens), dtype=np.bool_)
        if published is None
        else plan_divisions(layout) == DIVISIONS.index(published.division),
    )


def _resolution(model: Model, cluster: Cluster, job: Job, layout: Layout, scores: Scores) -> Resolution:
    """Resolution of the cost model for pairs of the plans' kinds. Measured runs refine it."""
    code, divisions, kinds = stack_of(job, layout).name, plan_divisions(layout), list(map(str, kind_names(cluster)))
    width = np.ones(len(kinds))
    if job.calibration is not None:
        fastest_first = np.argsort(-scores.tokens_per_second, kind="stable")
        leaders = fastest_first[first_of_each(divisions[fastest_first])]
        width[divisions[leaders]] = learned_width(model, cluster, job, layout.take(leaders))
    quantile = NormalDist().inv_cdf(policy().resolution_probability)
    shares = [
        [
            -math.expm1(-quantile * comparison_spread(code, mine, kind, (width[row], width[column])))
            for column, kind in enumerate(kinds)
        ]
        for row, mine in enumerate(kinds)
    ]
    return Resolution(divisions, np.array(shares))
