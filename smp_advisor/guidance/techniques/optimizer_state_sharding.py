"""Optimizer-state sharding, or sharded data parallelism in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.guidance.techniques.conclusion import Conclusion, brief_used, why_not_used, why_used
from smp_advisor.guidance.what_if import vary, without
from smp_advisor.wording import SAME, VISIBLE_GIB, compared, figures, fit, fits, gib, plural

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.planned_run import PlannedRun
    from smp_advisor.guidance.what_if import WhatIf

__all__ = ["comparisons", "conclude"]

_NOTHING: dict[str, Any] = {"shard_optimizer_state": False, "sharded_data_parallel_degree": 1}


def comparisons(run: PlannedRun) -> dict[str, WhatIf]:
    """No sharding, optimizer-state sharding, and every degree of sharded data parallelism."""
    result = {
        "nothing": without(run, **_NOTHING),
        "optimizer": without(run, shard_optimizer_state=True, sharded_data_parallel_degree=1),
    }
    if run.plan.sharded_data_parallel_degree == 1 and run.plan.pipeline_parallel_degree == 1:
        for degree in _degrees(run.replicas):
            result[f"sharded {degree}"] = vary(run, shard_optimizer_state=False, sharded_data_parallel_degree=degree)
    return result


def _degrees(replicas: int) -> list[int]:
    return [degree for degree in range(2, replicas + 1) if replicas % degree == 0]


def conclude(run: PlannedRun, comparisons: Mapping[str, WhatIf], estimates: Mapping[str, Estimate]) -> Conclusion:
    """Compare the plan's sharding with the others."""
    plan = run.plan
    if plan.sharded_data_parallel_degree > 1:
        return _sharded(run, comparisons, estimates)
    if plan.shard_optimizer_state:
        return _optimizer(run, comparisons, estimates)
    if run.data_parallel_degree == 1:
        return Conclusion(
            decision="not possible",
            because="There is only one data-parallel rank, so the optimizer state cannot be divided.",
        )
    with_, estimate = comparisons["optimizer"], estimates.get("optimizer")
    sentences = (
        why_not_used(run, with_, estimate, name="shard_optimizer_state"),
        *_instead(run, comparisons, estimates),
    )
    return Conclusion(
        decision="not used",
        because=" ".join(sentences),
        figures=figures(estimate, run.estimate),
        alternative=with_.plan if estimate else None,
    )


def _state(estimate: Estimate) -> str:
    peak = estimate.memory.peak
    value = peak.optimizer_state_gib + peak.fp32_copies_gib
    return gib(value) if value >= VISIBLE_GIB or not value else "less than 0.1 GiB"


def _optimizer(run: PlannedRun, comparisons: Mapping[str, WhatIf], estimates: Mapping[str, Estimate]) -> Conclusion:
    without, estimate = comparisons["nothing"], estimates.get("nothing")
    undivided = f" (vs {_state(estimate)})" if estimate else ""
    state = "The optimizer state is" if run.job.precision == "fp32" else "Optimizer state and fp32 copies are"
    sentences = (
        f"{state} divided over {plural(run.replicas, 'replica')}: {_state(run.estimate)} per GPU{undivided}.",
        why_used(run, without, estimate),
        *_instead(run, comparisons, estimates),
    )
    return Conclusion(
        decision="used",
        because=" ".join(sentences),
        figures=figures(run.estimate, estimate),
        alternative=without.plan if estimate else None,
    )


def _instead(run: PlannedRun, comparisons: Mapping[str, WhatIf], estimates: Mapping[str, Estimate]) -> list[str]:
    """Sharded data parallelism in its place, at the smallest degree that fits (otherwise the largest)."""
    if run.plan.pipeline_parallel_degree > 1:
        return ["Sharded data parallelism in its place is not possible: it excludes pipeline parallelism."]
    by_degree = {
        degree: estimates[f"sharded {degree}"] for degree in _degrees(run.replicas) if f"sharded {degree}" in estimates
    }
    if not by_degree:
        return []
    required = run.min_fit_probability
    fitting = [degree for degree, estimate in by_degree.items() if fits(estimate, required)]
    degree = min(fitting) if fitting else max(by_degree)
    aside = comparisons[f"sharded {degree}"].aside
    rank = "smallest degree that fits" if fitting else "largest degree"
    return [
        (
            f"With sharded data parallelism in its place, at the {rank} ({degree}){aside},"
            f" the plan {compared(run.estimate, by_degree[degree])}."
        ),
        f"It {fit(by_degree[degree], required)}.",
    ]


def _brief_instead(run: PlannedRun, estimate: Estimate | None) -> str:
    """Why not the sharding of the optimizer state alone."""
    if estimate is None:
        return ""
    if not fits(estimate, run.min_fit_probability):
        return "Sharding only the optimizer state is not enough." if run.fits else ""
    change = estimate.samples_per_second / run.estimate.samples_per_second - 1
    speed = "as fast" if abs(change) < SAME else "faster" if change > 0 else "slower"
    return f"Sharding only the optimizer state is {speed}."


def _sharded(run: PlannedRun, comparisons: Mapping[str, WhatIf], estimates: Mapping[str, Estimate]) -> Conclusion:
    degree = run.plan.sharded_data_parallel_degree
    without, estimate = comparisons["optimizer"], estimates.get("optimizer")
    bytes_ = 16 if run.job.precision == "fp32" else 20
    if run.job.optimizer == "sgd":
        bytes_ -= 4
    sentences = [
        (
            f"All {bytes_} bytes of state per parameter (parameters, gradients, optimizer state, copies) are divided"
            f" over {degree} GPUs. shard_optimizer_state would not divide parameters and gradients."
        )
    ]
    if estimate is None:
        sentences.append(f"There is no plan with shard_optimizer_state in its place: {without.obstacle}")
    else:
        sentences += [
            f"With shard_optimizer_state in its place{without.aside}, the plan {compared(run.estimate, estimate)}.",
            f"It {fit(estimate, run.min_fit_probability)}.",
        ]
    nothing = estimates.get("nothing")
    sentences.append(why_used(run, comparisons["nothing"], nothing, name="any sharding"))
    briefs = ("" if nothing is None else brief_used(run, nothing, name="sharding"), _brief_instead(run, estimate))
    return Conclusion(
        decision="used",
        because=" ".join(sentences),
        brief=" ".join(filter(None, briefs)),
        figures=figures(run.estimate, estimate),
        alternative=without.plan if estimate else None,
        practice="sharded_data_parallelism",
    )
