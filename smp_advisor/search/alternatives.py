"""The best plan of each combination of techniques, and why it is not the recommended one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from smp_advisor.costs.evaluate import estimate, fit_probability
from smp_advisor.costs.world import World
from smp_advisor.libraries.groups import global_batch_size
from smp_advisor.libraries.registry import get_library
from smp_advisor.search.rank import NEAR_BEST, combinations, communication_span, first_of_each, techniques
from smp_advisor.uninterrupted import uninterrupted

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.search.rank import Objective
    from smp_advisor.search.search import SearchResult
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["alternatives", "listed_plans", "representatives"]


def _value(plan: Plan, name: str) -> Any:
    value = getattr(plan, name)
    return value or "none" if name == "activation_checkpointing" else value


def _representatives(result: SearchResult) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Positions in `ranked` of the best plan of each combination, and rows nearest to fitting of the others."""
    keys = combinations(result.space.layout)
    fitting = first_of_each(keys[result.ranked])
    nearest_first = np.argsort(result.needed_gib, kind="stable")
    too_large = nearest_first[first_of_each(keys[nearest_first])]
    return fitting, too_large[~np.isin(keys[too_large], keys[result.ranked[fitting]])]


def representatives(result: SearchResult) -> SearchResult:
    """The result with only the plans that `alternatives` lists: kilobytes instead of megabytes."""
    fitting, too_large = _representatives(result)
    rows = np.concatenate([result.ranked[fitting], too_large])
    return replace(
        result,
        space=result.space.take(rows),
        **{name: getattr(result, name)[rows] for name in ("peak_gib", "needed_gib", "margin")},
        ranked=np.arange(len(fitting)),
        scores=result.scores.take(fitting),
        step_seconds=result.step_seconds[fitting],
    )


def listed_plans(result: SearchResult) -> list[Plan]:
    """Plans of the rows of `alternatives`, in their order."""
    fitting, too_large = _representatives(result)
    return [result.space.plan(row) for row in [*result.ranked[fitting].tolist(), *too_large.tolist()]]


def alternatives(result: SearchResult, model: Model, job: Job, *, min_fit_probability: float) -> pd.DataFrame:
    """The best plan of each combination of techniques, one row per combination, best first.

    Combinations without a plan that fits follow, nearest to fitting first. Columns: the plan's settings, figures with
    their units in the names and the ends of their 95 % prediction intervals (``_low``, ``_high``),
    ``fit_probability``, and ``why`` the plan is not the recommended one.
    """
    with uninterrupted():
        import pandas as pd

    fitting, too_large = _representatives(result)
    best = result.ranked[fitting]
    fits = set(best.tolist())
    layout = result.space.layout
    counts, spans = techniques(layout), communication_span(World.of(model, result.cluster, job, layout), layout)
    usable = result.cluster.instance.usable_gpu_memory_gib
    rows: list[dict[str, Any]] = []
    for row in [*best.tolist(), *too_large.tolist()]:
        plan = result.space.plan(row)
        rows.append(
            {
                **{name: _value(plan, name) for name in get_library(plan.library).alternatives},
                "global_batch_size": global_batch_size(plan, result.cluster),
                **_speed(estimate(model, result.cluster, job, plan) if row in fits else None),
                "peak_gib": float(result.peak_gib[row]),
                "needed_gib": float(result.needed_gib[row]),
                "headroom_gib": usable - float(result.needed_gib[row]),
                "fit_probability": fit_probability(float(result.margin[row])),
                "techniques": int(counts[row]),
                "communication_gpus": int(spans[row]),
            }
        )
        rows[-1]["why"] = _why(rows[-1], rows[0], result.objective, min_fit_probability)
    return pd.DataFrame(rows)


def _speed(value: Estimate | None) -> dict[str, float | None]:
    """Throughput and step time with their intervals; None for plans that do not fit."""
    columns: dict[str, float | None] = {}
    for name in ("tokens_per_second", "step_seconds"):
        low, high = (None, None) if value is None else getattr(value, f"{name}_range")
        columns |= {name: None if value is None else getattr(value, name), f"{name}_low": low, f"{name}_high": high}
    return columns


def _why(row: dict[str, Any], leader: dict[str, Any], objective: Objective, min_fit_probability: float) -> str:
    """Why a plan is not the recommended one, in one sentence."""
    if row["tokens_per_second"] is None:
        return _unfit(row, min_fit_probability)
    if row is leader:
        return "Recommended."
    ratio = row["tokens_per_second"] / leader["tokens_per_second"]
    if ratio < 1 - NEAR_BEST:
        return f"{100 * (1 - ratio):.0f} % slower."
    more = row["techniques"] - leader["techniques"]
    if ratio > 1 + NEAR_BEST:
        faster = f"{100 * (ratio - 1):.0f} % faster"
        if objective in ("headroom", "simplicity"):
            return f"{faster}, ranked lower by the objective."
        if more > 0:
            return f"{faster}, with {more} more technique{'s' if more > 1 else ''}."
        if row["global_batch_size"] > leader["global_batch_size"]:
            return f"{faster}, with {row['global_batch_size'] / leader['global_batch_size']:.3g} times the batch."
        spans = row["communication_gpus"], leader["communication_gpus"]
        if spans[0] > spans[1]:
            return f"{faster}, with communication groups of {spans[0]:,} GPUs (vs {spans[1]:,})."
        return f"{faster}, which the cost model does not resolve."
    if more > 0:
        return f"As fast within {100 * NEAR_BEST:.0f} %, with {more} more technique{'s' if more > 1 else ''}."
    return f"As fast within {100 * NEAR_BEST:.0f} %, {_lesser(row, leader)}."


def _unfit(row: dict[str, Any], min_fit_probability: float) -> str:
    """Why a plan does not fit."""
    if row["headroom_gib"] < 0:
        return f"Does not fit: {-row['headroom_gib']:.1f} GiB over the available memory with the smallest batch."
    if row["fit_probability"] < min_fit_probability:
        return (
            f"Fits by the point estimate, but with a probability of {100 * row['fit_probability']:.1f} % only "
            f"({100 * min_fit_probability:.0f} % required)."
        )
    return "Its offloaded activations do not fit in host memory."


def _lesser(row: dict[str, Any], leader: dict[str, Any]) -> str:
    """The first preference in which a plan of equal speed comes after the recommended one."""
    spans = row["communication_gpus"], leader["communication_gpus"]
    if spans[0] > spans[1]:
        return f"with communication groups of {spans[0]:,} GPUs (vs {spans[1]:,})"
    batches = row["global_batch_size"], leader["global_batch_size"]
    if batches[0] > batches[1]:
        return f"with {batches[0]:,} samples per step (vs {batches[1]:,})"
    less = round(leader["headroom_gib"] - row["headroom_gib"], 1)
    return f"with {less:.1f} GiB less headroom" if less > 0 else "and ranked lower by the objective"
