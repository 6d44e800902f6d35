"""Sharded data parallelism: a number of shards (SMP v2), or FSDP's strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.guidance.techniques.conclusion import Conclusion, brief_change, brief_used
from smp_advisor.guidance.what_if import vary, without
from smp_advisor.libraries.groups import divisors, shard_degree
from smp_advisor.libraries.library import get_library
from smp_advisor.wording import compared, figures, fit, fits, gib, plural

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.planned_run import PlannedRun
    from smp_advisor.guidance.what_if import WhatIf

__all__ = ["comparisons", "conclude"]

_STRATEGIES = ("full_shard", "hybrid_shard")
_ALL = "The library shards parameters, gradients and optimizer state over all GPUs."
"""Short reason without another strategy, on one node."""


def comparisons(run: PlannedRun) -> dict[str, WhatIf]:
    """Every lower shard degree and the next higher one; the other strategy if the library has no shard degree."""
    plan, field = run.plan, get_library(run.plan.library).shard_field
    if not field:
        others = [name for name in _STRATEGIES if name != plan.sharding_strategy and run.cluster.nodes > 1]
        return {name: vary(run, sharding_strategy=name) for name in others}
    current = shard_degree(plan, run.cluster)
    degrees = divisors(run.cluster.gpus // (plan.tensor_parallel_degree * plan.expert_parallel_degree))
    higher = [degree for degree in degrees if degree > current][:1]
    changes: list[dict[str, Any]] = [{field: degree} for degree in degrees if degree < current or degree in higher]
    return {str(change[field]): without(run, **change) for change in changes}


def conclude(run: PlannedRun, comparisons: Mapping[str, WhatIf], estimates: Mapping[str, Estimate]) -> Conclusion:
    """Report the sharded state, and the lowest degree that fits."""
    current = shard_degree(run.plan, run.cluster)
    peak = run.estimate.memory.peak
    state = peak.parameters_gib + peak.gradients_gib + peak.optimizer_state_gib
    replicas = run.cluster.gpus // (current * run.plan.tensor_parallel_degree * run.plan.expert_parallel_degree)
    sentences = [
        (
            f"Parameters, gradients and optimizer state are sharded over {plural(current, 'GPU')} and take {gib(state)}"
            " per GPU."
        )
    ]
    if replicas > 1:
        sentences.append(f"{replicas} such groups reduce gradients between them.")
    if not get_library(run.plan.library).shard_field:
        return _strategy(run, comparisons, estimates, sentences)
    lower = {int(key): estimate for key, estimate in estimates.items() if int(key) < current}
    enough = [degree for degree, estimate in lower.items() if fits(estimate, run.min_fit_probability)]
    if enough:
        least = min(enough)
        sentences += [
            (
                f"A degree of {least} would be enough{comparisons[str(least)].aside}: with it, the plan"
                f" {compared(run.estimate, lower[least])}."
            ),
            "AWS advises the lowest degree that fits.",
        ]
    elif lower:
        next_lower = max(lower)
        sentences += ["It is the lowest degree that fits."] if run.fits else []
        sentences.append(f"With degree {next_lower}, the plan {fit(lower[next_lower], run.min_fit_probability)}.")
    key = str(max(lower)) if lower else next(iter(estimates), "")
    estimate = estimates.get(key)
    return Conclusion(
        decision="used" if current > 1 else "not used",
        because=" ".join(sentences),
        brief=_brief(run, current, {int(key): estimate for key, estimate in estimates.items()}),
        figures=figures(run.estimate, estimate),
        alternative=comparisons[key].plan if estimate else None,
    )


def _brief(run: PlannedRun, current: int, by_degree: Mapping[int, Estimate]) -> str:
    """Whether sharding is required, and whether a lower degree is enough."""
    lower = {degree: estimate for degree, estimate in by_degree.items() if degree < current}
    enough = [degree for degree, estimate in lower.items() if fits(estimate, run.min_fit_probability)]
    if current == 1:
        return "Each GPU stores the entire state, which fits." if run.fits else "Each GPU stores the entire state."
    if not run.fits or not lower:
        return "Parameters, gradients and optimizer state are sharded."
    if not enough:
        return "Required: it is the lowest degree that fits, as AWS advises."
    least = min(enough)
    start = brief_used(run, by_degree[1], name="sharding") if 1 in by_degree else ""
    if least == 1:
        return start
    return f"{start} A degree of {least} also fits. {brief_change(run, by_degree[least])} with it.".strip()


def _strategy(
    run: PlannedRun, comparisons: Mapping[str, WhatIf], estimates: Mapping[str, Estimate], sentences: list[str]
) -> Conclusion:
    strategy = next(iter(comparisons), "")
    estimate = estimates.get(strategy)
    if estimate is not None:
        sentences += [
            (
                f"With sharding_strategy={strategy!r}{comparisons[strategy].aside}, the plan"
                f" {compared(run.estimate, estimate)}."
            ),
            f"It {fit(estimate, run.min_fit_probability)}.",
        ]
    elif strategy:
        sentences.append(
            f"A plan with sharding_strategy={strategy!r} is not possible: {comparisons[strategy].obstacle}"
        )
    return Conclusion(
        decision="used",
        because=" ".join(sentences),
        brief=f"The alternative is {strategy}. {brief_change(run, estimate)} with it." if estimate else _ALL,
        figures=figures(run.estimate, estimate),
        alternative=comparisons[strategy].plan if estimate else None,
    )
