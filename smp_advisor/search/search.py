"""Every plan of a cluster: enumerated, scored, ranked, and the best of each combination of techniques."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from smp_advisor.core import GIB
from smp_advisor.core.tables import frame_of
from smp_advisor.core.words import plural
from smp_advisor.costs.constants import are_overridden
from smp_advisor.costs.evaluate import (
    estimate,
    fit_probability,
    learned_width,
    memory_columns,
    pressure_columns,
    seconds_columns,
    trained,
)
from smp_advisor.costs.phases import HOST_SHARE
from smp_advisor.costs.uncertainty import DIVISIONS, comparison_spread, kind_names, plan_divisions
from smp_advisor.costs.world import World, stack_of
from smp_advisor.libraries.groups import global_batch_size
from smp_advisor.libraries.layout import COLUMNS
from smp_advisor.libraries.library import DEFAULT_LIBRARY, get_library
from smp_advisor.libraries.space import Space, enumerate_plans
from smp_advisor.search.rank import (
    NEAR_BEST,
    Objective,
    Resolution,
    Scores,
    batch_policy,
    combinations,
    communication_span,
    first_of_each,
    order,
    policy,
    published_for,
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
    import pandas as pd

    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.search.rank import Objective


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """All plans of one cluster, scored; those that fit, ranked."""

    cluster: Cluster
    objective: Objective
    space: Space
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
        return self.space.plan(int(self.ranked[0]))

    def has_best_of(self, result: SearchResult) -> bool:
        """Return whether the best plans of two results are the same, but for their precision."""
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
    """All plans of a library on a cluster. One request needs some of them several times, and the next one, too."""
    key = (model, cluster, job, objective, min_fit_probability, tuple(sorted((pins or {}).items())), library)
    terms = (model, cluster, job, objective, min_fit_probability, pins, library)
    try:
        result = None if are_overridden() else _known.get(key)
    except TypeError:  # an unhashable pin, which the library refuses
        return _searched(*terms)
    if result is not None:
        return result
    result = _searched(*terms)
    if len(result.space) <= _MOST_PLANS and not are_overridden():
        _known[key] = result
        for oldest in [*_known][: max(0, len(_known) - _MOST_KNOWN)]:
            _known.pop(oldest, None)
    return result


_known: dict[tuple[object, ...], SearchResult] = {}
_MOST_PLANS, _MOST_KNOWN = 10_000, 64
"""Plans of a search that is kept, and searches: a few MB each."""


def _searched(
    model: Model,
    cluster: Cluster,
    job: Job,
    objective: Objective,
    min_fit_probability: float,
    pins: Mapping[str, Any] | None,
    library: str,
) -> SearchResult:
    space = enumerate_plans(model, cluster, job, pins, library=library)
    memory = memory_columns(model, cluster, job, space.layout)
    usable = cluster.instance.usable_gpu_memory_gib * GIB
    host_fits = memory.host_bytes_per_node <= HOST_SHARE * cluster.instance.host_memory_gib * GIB
    usual = _in_few_parts(space.layout, job, pins or {})
    rows = np.flatnonzero((memory.margin >= NormalDist().inv_cdf(min_fit_probability)) & host_fits & usual)
    layout = space.layout.take(rows)
    seconds = sum(seconds_columns(model, cluster, job, layout).values(), np.zeros(len(rows)))
    seconds = seconds * pressure_columns(trained(model, job), cluster, job, layout, memory.needed_bytes[rows])
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
        needed_gib=memory.needed_bytes / GIB,
        margin=memory.margin,
        ranked=rows[best_first],
        scores=scores.take(best_first),
        step_seconds=seconds[best_first],
    )


def _in_few_parts(layout: Layout, job: Job, pins: Mapping[str, Any]) -> NDArray[np.bool_]:
    """Whether each plan has as few microbatches or accumulated batches as a batch that the search chooses may have."""
    if job.global_batch_size is not None or {"microbatches", "gradient_accumulation_steps", "batch_size"} & set(pins):
        return np.ones(len(layout), dtype=np.bool_)
    stages, limits = layout.pipeline_parallel_degree, policy()
    most = np.where(stages > 1, limits.most_microbatches_per_stage * stages, limits.most_accumulated)
    result: NDArray[np.bool_] = layout.microbatches <= most
    return result


def _scores(
    model: Model, cluster: Cluster, job: Job, library: str, layout: Layout, seconds: Floats, headroom: Floats
) -> Scores:
    world = World.of(model, cluster, job, layout)
    replicas = np.asarray(world.replicas, dtype=np.int64)
    tokens = layout.batch_samples * replicas * model.sequence_length(job.sequence_length)
    speed = tokens / seconds
    missing, worth = np.zeros(len(tokens)), np.ones(len(tokens))
    if job.global_batch_size is None:
        batch = batch_policy(model, job, cluster.gpus)
        missing = batch.doublings_missing(tokens, speed, job.max_tokens_per_step)
        worth = batch.worth(tokens, missing)
    span = communication_span(world, layout)
    division, _ = published_for(library, model.parameter_count)
    return Scores(
        tokens_per_second=speed,
        headroom=headroom,
        techniques=techniques(layout),
        tokens_per_step=tokens,
        worth=worth,
        doublings_missing=missing,
        span=span,
        nodes=-(-span // cluster.instance.gpus),
        context_nodes=np.where(
            layout.context_parallel_degree > 1,
            -(-layout.context_parallel_degree * world.data_stride // cluster.instance.gpus),
            1,
        ).astype(np.int64),
        microbatches=layout.microbatches,
        pipelined=layout.pipeline_parallel_degree > 1,
        published=plan_divisions(layout) == DIVISIONS.index(division) if division else np.ones(len(tokens), np.bool_),
    )


def _resolution(model: Model, cluster: Cluster, job: Job, layout: Layout, scores: Scores) -> Resolution:
    """Resolution of the cost model for pairs of the plans' kinds. Measured runs refine it."""
    code, divisions, kinds = (
        stack_of(job, layout).name,
        plan_divisions(layout),
        list(map(str, kind_names(one_node=cluster.nodes == 1))),
    )
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


def _representatives(result: SearchResult) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Positions in `ranked` of the best plan of each combination, and rows nearest to fitting of the others."""
    keys = combinations(result.space.layout)
    fitting = first_of_each(keys[result.ranked])
    nearest_first = np.argsort(result.needed_gib, kind="stable")
    too_large = nearest_first[first_of_each(keys[nearest_first])]
    return fitting, too_large[~np.isin(keys[too_large], keys[result.ranked[fitting]])]


def representatives(result: SearchResult) -> SearchResult:
    """Return the result with only the plans that `alternatives` lists: kilobytes instead of megabytes."""
    fitting, too_large = _representatives(result)
    rows = np.concatenate([result.ranked[fitting], too_large])
    return replace(
        result,
        space=result.space.take(rows),
        **{name: getattr(result, name)[rows] for name in ("needed_gib", "margin")},
        ranked=np.arange(len(fitting)),
        scores=result.scores.take(fitting),
        step_seconds=result.step_seconds[fitting],
    )


def listed_plans(result: SearchResult) -> list[Plan]:
    fitting, too_large = _representatives(result)
    return [result.space.plan(row) for row in [*result.ranked[fitting].tolist(), *too_large.tolist()]]


def alternatives(result: SearchResult, model: Model, job: Job, *, min_fit_probability: float) -> pd.DataFrame:
    """Return the best plan of each combination of techniques, one row per combination, best first."""
    fitting, too_large = _representatives(result)
    best = result.ranked[fitting]
    fits = set(best.tolist())
    layout = result.space.layout
    counts, spans = techniques(layout), communication_span(World.of(model, result.cluster, job, layout), layout)
    usable = result.cluster.instance.usable_gpu_memory_gib
    rows: list[dict[str, Any]] = []
    for row in [*best.tolist(), *too_large.tolist()]:
        plan = result.space.plan(row)
        settings = {name: getattr(plan, name) for name in get_library(plan.library).alternatives}
        if settings.get("activation_checkpointing") is False:
            settings["activation_checkpointing"] = "none"
        rows.append(
            {
                **settings,
                "global_batch_size": global_batch_size(plan, result.cluster),
                **_speed(estimate(model, result.cluster, job, plan) if row in fits else None),
                "needed_gib": float(result.needed_gib[row]),
                "headroom_gib": usable - float(result.needed_gib[row]),
                "fit_probability": fit_probability(float(result.margin[row])),
                "techniques": int(counts[row]),
                "communication_gpus": int(spans[row]),
            }
        )
        rows[-1]["why"] = _why(rows[-1], rows[0], result.objective, min_fit_probability)
    return frame_of(rows)


def _speed(value: Estimate | None) -> dict[str, float | None]:
    """Throughput and step time with their intervals; None for plans that do not fit."""
    columns: dict[str, float | None] = {}
    for name in ("tokens_per_second", "step_seconds"):
        low, high = (None, None) if value is None else getattr(value, f"{name}_range")
        columns |= {name: None if value is None else getattr(value, name), f"{name}_low": low, f"{name}_high": high}
    return columns


def _why(row: dict[str, Any], leader: dict[str, Any], objective: Objective, min_fit_probability: float) -> str:
    if row["tokens_per_second"] is None:
        if row["headroom_gib"] < 0:
            return f"Does not fit: {-row['headroom_gib']:.1f} GiB over the available memory with the smallest batch."
        chance, least = row["fit_probability"], min_fit_probability
        if chance < least:
            only = f"with a probability of {100 * chance:.1f} % only ({100 * least:.0f} % required)"
            return f"Fits by the point estimate, but {only}."
        return "Its offloaded activations do not fit in host memory."
    if row is leader:
        return "Recommended."
    ratio = row["tokens_per_second"] / leader["tokens_per_second"]
    if ratio < 1 - NEAR_BEST:
        return f"{100 * (1 - ratio):.0f} % slower."
    more, (wide, usual) = row["techniques"] - leader["techniques"], (of["communication_gpus"] for of in (row, leader))
    techniques = f"with {plural(more, 'more technique')}." if more > 0 else ""
    span = f"with communication groups of {wide:,} GPUs (vs {usual:,})." if wide > usual else ""
    batch, own = row["global_batch_size"], leader["global_batch_size"]
    if ratio > 1 + NEAR_BEST:
        faster = f"{100 * (ratio - 1):.0f} % faster"
        if objective in ("headroom", "simplicity"):
            return f"{faster}, ranked lower by the objective."
        times = f"with {batch / own:.3g} times the batch." if batch > own else ""
        return f"{faster}, {techniques or times or span or 'which the cost model does not resolve.'}"
    samples = f"with {batch:,} samples per step (vs {own:,})." if batch > own else ""
    less = round(leader["headroom_gib"] - row["headroom_gib"], 1)
    memory = f"with {less:.1f} GiB less headroom." if less > 0 else "and ranked lower by the objective."
    return f"As fast within {100 * NEAR_BEST:.0f} %, {techniques or span or samples or memory}"
