"""Sharding of the state: SMP v1's two kinds, degrees, and FSDP's strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.advice.conclusion import (
    Conclusion,
    against,
    brief_change,
    brief_used,
    figures,
    speed_of,
    why_used,
)
from smp_advisor.advice.variants import PlannedRun, WhatIf, vary, without
from smp_advisor.core.files import sentence
from smp_advisor.costs.wording import compared, fit, fits, gib, plural
from smp_advisor.libraries import get_library
from smp_advisor.libraries.groups import divisors, shard_degree
from smp_advisor.libraries.sharding import RESHARDING

if TYPE_CHECKING:
    from smp_advisor.advice.variants import Estimates, Plans
    from smp_advisor.costs.estimate import Estimate

    Compared = tuple[WhatIf, Estimate | None]


def sharded(run: PlannedRun, unsharded: Compared, variant: WhatIf, estimates: Estimates) -> Conclusion:
    """Conclude on SMP v1's sharded data parallelism: without any sharding, and with that of the optimizer state."""
    (plain, nothing), estimate = unsharded, estimates.get("optimizer")
    peak = run.estimate.memory.peak
    state_gib = peak.parameters_gib + peak.gradients_gib + peak.optimizer_state_gib + peak.fp32_copies_gib
    briefs = ["" if nothing is None else brief_used(run, nothing, name="sharding", aside=plain.aside)]
    if estimate is None:
        alone = f"There is no plan with shard_optimizer_state in its place: {variant.obstacle}"
    else:
        alone = sentence("advice", "unsharded_optimizer", aside=variant.aside, **_outcome(run, estimate))
        if fits(estimate, run.min_fit_probability):
            briefs.append(f"Sharding only the optimizer state is {speed_of(run, estimate)}.")
        elif run.fits:
            briefs.append("Sharding only the optimizer state is not enough.")
    degree, why = run.plan.sharded_data_parallel_degree, why_used(run, plain, nothing, name="any sharding")
    because = sentence("advice", "sharded", degree=degree, state=gib(state_gib), alone=alone, why=why)
    return Conclusion(
        decision="used",
        because=because,
        brief=" ".join(filter(None, briefs)),
        figures=figures(run.estimate, estimate),
        alternative=variant.plan if estimate else None,
        practice="sharded_data_parallelism",
    )


def _outcome(run: PlannedRun, estimate: Estimate) -> dict[str, str]:
    """Memory, speed and fit of another plan, for sentences."""
    return {"compared": compared(run.estimate, estimate), "fit": fit(estimate, run.min_fit_probability)}


def other_degrees(run: PlannedRun) -> dict[str, WhatIf]:
    """Every lower shard degree and the next higher one; the other strategy if the library has no shard degree."""
    plan, field = run.plan, get_library(run.plan.library).shard_field
    if not field:
        names = [name for name in RESHARDING if name != plan.sharding_strategy and run.cluster.nodes > 1]
        return {name: vary(run, sharding_strategy=name) for name in names}
    current = shard_degree(plan, run.cluster)
    degrees = divisors(run.cluster.gpus // (plan.tensor_parallel_degree * plan.expert_parallel_degree))
    higher = [degree for degree in degrees if degree > current][:1]
    changes: list[dict[str, Any]] = [{field: degree} for degree in degrees if degree < current or degree in higher]
    return {str(change[field]): without(run, **change) for change in changes}


def conclude_on_degrees(run: PlannedRun, comparisons: Plans, estimates: Estimates) -> Conclusion:
    """Report the sharded state, and the lowest degree that fits."""
    current, peak = shard_degree(run.plan, run.cluster), run.estimate.memory.peak
    state = peak.parameters_gib + peak.gradients_gib + peak.optimizer_state_gib
    replicas = run.cluster.gpus // (current * run.plan.tensor_parallel_degree * run.plan.expert_parallel_degree)
    sentences = [sentence("advice", "shards", gpus=plural(current, "GPU"), state=gib(state))]
    if replicas > 1:
        sentences.append(f"{replicas} such groups reduce gradients between them.")
    if not get_library(run.plan.library).shard_field:
        return _on_strategy(run, comparisons, estimates, sentences)
    # AWS advises the lowest degree that fits, so that a lower one that fits is the news, and else that none does.
    by_degree = {int(key): estimate for key, estimate in estimates.items()}
    lower = {degree: estimate for degree, estimate in by_degree.items() if degree < current}
    enough = [degree for degree, estimate in lower.items() if fits(estimate, run.min_fit_probability)]
    brief = "Parameters, gradients and optimizer state are sharded."
    if current == 1:
        brief = f"Each GPU stores the entire state{', which fits' if run.fits else ''}."
    elif run.fits and lower and not enough:
        brief = "Required: it is the lowest degree that fits, as AWS advises."
    if enough:
        least = min(enough)
        aside = comparisons[str(least)].aside
        sentences.append(sentence("advice", "enough", least=least, aside=aside, **_outcome(run, lower[least])))
        if run.fits:
            aside = comparisons["1"].aside if 1 in by_degree else ""
            brief = brief_used(run, by_degree[1], name="sharding", aside=aside) if 1 in by_degree else ""
            if least > 1:
                brief = f"{brief} A degree of {least} also fits. {brief_change(run, lower[least])} with it.".strip()
    elif lower:
        sentences += ["It is the lowest degree that fits."] if run.fits else []
        sentences.append(f"With degree {max(lower)}, the plan {fit(lower[max(lower)], run.min_fit_probability)}.")
    key = str(max(lower)) if lower else next(iter(estimates), "")
    return Conclusion(
        decision="used" if current > 1 else "not used",
        because=" ".join(sentences),
        brief=brief,
        figures=figures(run.estimate, estimates.get(key)),
        alternative=comparisons[key].plan if key in estimates else None,
    )


def _on_strategy(run: PlannedRun, comparisons: Plans, estimates: Estimates, sentences: list[str]) -> Conclusion:
    brief = "The library shards parameters, gradients and optimizer state over all GPUs."
    estimate: Estimate | None = None
    variant = WhatIf(cluster=run.cluster, job=run.job)
    strategy = next(iter(comparisons), "")
    if strategy:
        variant, estimate = comparisons[strategy], estimates.get(strategy)
        if estimate is None:
            sentences.append(f"A plan with sharding_strategy={strategy!r} is not possible: {variant.obstacle}")
        else:
            change = brief_change(run, estimate)
            brief = f"With {strategy} instead, {change[:1].lower()}{change[1:]}".rstrip(",") + "."
            values = {"strategy": strategy, "aside": variant.aside, **_outcome(run, estimate)}
            sentences.append(sentence("advice", "strategy", **values))
    return against(run, "used", variant, estimate, " ".join(sentences), brief=brief)
