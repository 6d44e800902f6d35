"""Memory: sharding of the state (two kinds of SMP v1, degrees, FSDP's strategy), and activations in less memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.advice.conclusion import (
    Argument,
    Conclusion,
    against,
    brief_change,
    brief_used,
    figures,
    not_possible,
    speed_of,
    used,
    why_not_used,
    why_used,
)
from smp_advisor.advice.variants import PlannedRun, WhatIf, vary, without
from smp_advisor.costs.wording import VISIBLE_GIB, compared, fit, fits, gib, plural
from smp_advisor.libraries import get_library, schema
from smp_advisor.libraries.groups import divisors, shard_degree
from smp_advisor.libraries.layout import layout_of
from smp_advisor.libraries.sharding import RESHARDING

if TYPE_CHECKING:
    from smp_advisor.advice.variants import Estimates, Plans
    from smp_advisor.costs.estimate import Estimate


def _kinds(run: PlannedRun) -> dict[str, WhatIf]:
    """Return no sharding, and optimizer-state sharding. The ladder has sharded data parallelism in its place."""
    return {
        "nothing": without(run, shard_optimizer_state=False, sharded_data_parallel_degree=1),
        "optimizer": without(run, shard_optimizer_state=True, sharded_data_parallel_degree=1),
    }


def _on_kinds(run: PlannedRun, comparisons: Plans, estimates: Estimates) -> Conclusion:
    if run.plan.sharded_data_parallel_degree > 1:
        return _sharded(run, comparisons, estimates)
    if not run.plan.shard_optimizer_state:
        if run.data_parallel_degree == 1:
            return not_possible("There is only one data-parallel rank, so the optimizer state cannot be divided.")
        with_, estimate = comparisons["optimizer"], estimates.get("optimizer")
        reason = why_not_used(run, with_, estimate, name="shard_optimizer_state")
        return against(run, "not used", with_, estimate, reason)
    nothing, estimate = comparisons["nothing"], estimates.get("nothing")
    undivided = f" (vs {_state(estimate)})" if estimate else ""
    state = "The optimizer state is" if run.job.precision == "fp32" else "Optimizer state and fp32 copies are"
    divided = f"{state} divided over {plural(run.replicas, 'replica')}: {_state(run.estimate)} per GPU{undivided}."
    return against(run, "used", nothing, estimate, f"{divided} {why_used(run, nothing, estimate)}")


def _state(estimate: Estimate) -> str:
    peak = estimate.memory.peak
    value = peak.optimizer_state_gib + peak.fp32_copies_gib
    return gib(value) if value >= VISIBLE_GIB or not value else "less than 0.1 GiB"


def _sharded(run: PlannedRun, comparisons: Plans, estimates: Estimates) -> Conclusion:
    variant, estimate, nothing = comparisons["optimizer"], estimates.get("optimizer"), estimates.get("nothing")
    peak = run.estimate.memory.peak
    state_gib = peak.parameters_gib + peak.gradients_gib + peak.optimizer_state_gib + peak.fp32_copies_gib
    briefs = ["" if nothing is None else brief_used(run, nothing, name="sharding", aside=comparisons["nothing"].aside)]
    if estimate is None:
        alone = f"There is no plan with shard_optimizer_state in its place: {variant.obstacle}"
    else:
        alone = (
            f"With shard_optimizer_state in its place{variant.aside}, the plan {compared(run.estimate, estimate)}."
            f" It {fit(estimate, run.min_fit_probability)}."
        )
        if fits(estimate, run.min_fit_probability):
            briefs.append(f"Sharding only the optimizer state is {speed_of(run, estimate)}.")
        elif run.fits:
            briefs.append("Sharding only the optimizer state is not enough.")
    because = (
        "All state of a parameter (parameters, gradients, optimizer state, copies) is divided over"
        f" {run.plan.sharded_data_parallel_degree} GPUs: {gib(state_gib)} per GPU. shard_optimizer_state would not"
        f" divide parameters and gradients. {alone}"
        f" {why_used(run, comparisons['nothing'], nothing, name='any sharding')}"
    )
    return used(
        because,
        brief=" ".join(filter(None, briefs)),
        figures=figures(run.estimate, estimate),
        alternative=variant.plan if estimate else None,
        practice="sharded_data_parallelism",
    )


def _degrees(run: PlannedRun) -> dict[str, WhatIf]:
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


def _on_degrees(run: PlannedRun, comparisons: Plans, estimates: Estimates) -> Conclusion:
    """Report the sharded state, and the lowest degree that fits."""
    current, peak = shard_degree(run.plan, run.cluster), run.estimate.memory.peak
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
        sentences.append(
            f"A degree of {least} would be enough{comparisons[str(least)].aside}: with it, the plan"
            f" {compared(run.estimate, lower[least])}. AWS advises the lowest degree that fits."
        )
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
            sentences.append(
                f"With sharding_strategy={strategy!r}{variant.aside}, the plan {compared(run.estimate, estimate)}."
                f" It {fit(estimate, run.min_fit_probability)}."
            )
    return against(run, "used", variant, estimate, " ".join(sentences), brief=brief)


def _checkpointings(run: PlannedRun) -> dict[str, WhatIf]:
    """Return the plan without checkpointing if it is used, with that of each block otherwise."""
    if run.plan.activation_checkpointing:
        return {"none": without(run, activation_checkpointing=False)}
    return {"each": vary(run, activation_checkpointing="each")}


def _on_checkpointing(run: PlannedRun, comparisons: Plans, estimates: Estimates) -> Conclusion:
    strategy = run.plan.activation_checkpointing
    if not strategy:
        variant, estimate = comparisons["each"], estimates.get("each")
        reason = why_not_used(run, variant, estimate, name='activation_checkpointing="each"')
        return against(run, "not used", variant, estimate, reason)
    share = run.estimate.time.recomputation_seconds / run.estimate.step_seconds * 100
    peak = run.estimate.memory.peak
    # The unit that is recomputed counts if the peak is during a recomputation; it may be at the logits.
    live = f"{gib(peak.recomputation_gib)} at the peak, and " if peak.recomputation_gib >= VISIBLE_GIB else ""
    none, estimate = comparisons["none"], estimates.get("none")
    sentences = [
        f"Strategy {strategy!r} keeps {gib(peak.activations_gib)} of activations per GPU.",
        f"Recomputation takes {live}{share:.0f} % of the step.",
        why_used(run, none, estimate, name="checkpointing"),
    ]
    return against(run, "used", none, estimate, " ".join(sentences))


def _offloading(run: PlannedRun) -> dict[str, WhatIf]:
    """Return the plan with offloading the other way."""
    if not run.plan.activation_checkpointing:
        return {}
    change = without if run.plan.offload_activations else vary
    return {"other": change(run, offload_activations=not run.plan.offload_activations)}


def _on_offloading(run: PlannedRun, comparisons: Plans, estimates: Estimates) -> Conclusion:
    if not comparisons:
        because = "Offloading moves checkpointed activations, and this plan does not use activation checkpointing."
        return not_possible(because)
    plan, variant, estimate = run.plan, comparisons["other"], estimates.get("other")
    # Some libraries also move the activations of the microbatch that runs.
    moves_running, limits = bool(layout_of([plan], run.job, run.cluster).offload_running[0]), ""
    if not moves_running and plan.microbatches == 1:
        limits = "With a single microbatch, no microbatch waits whose activations could leave the GPU. "
    elif not moves_running and plan.pipeline_parallel_degree == 1:
        limits = (
            "Without a pipeline, one microbatch runs at a time: no microbatch waits whose activations could leave the"
            " GPU. "
        )
    if not plan.offload_activations:
        reason = why_not_used(run, variant, estimate, name="offload_activations")
        return against(run, "not used", variant, estimate, limits + reason)
    host = f"take {gib(run.estimate.host_memory_gib_per_node)} of host memory per node."
    lead = f"Activations of waiting microbatches {host}"
    if moves_running:
        horizon = plan.activation_loading_horizon
        if horizon is None:
            horizon = schema(plan.library).defaults(plan.version)["activation_loading_horizon"]
        lead = f"Checkpointed activations {host} Those of {int(horizon)} layers are on the GPU at a time."
    return against(run, "used", variant, estimate, f"{limits}{lead} {why_used(run, variant, estimate)}")


ARGUMENTS = {
    "optimizer_state_sharding": Argument(_kinds, _on_kinds),
    "sharding": Argument(_degrees, _on_degrees),
    "activation_checkpointing": Argument(_checkpointings, _on_checkpointing),
    "offloading": Argument(_offloading, _on_offloading),
}
"""Arguments for the practices, by name."""
