"""Memory of activations: checkpointing, and offloading to host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.guidance.conclusion import Argument, Conclusion, against, why_not_used, why_used
from smp_advisor.guidance.what_if import PlannedRun, WhatIf, vary, without
from smp_advisor.libraries.axes import checkpointing_strategies
from smp_advisor.libraries.layout import layout_of
from smp_advisor.libraries.schema import schema
from smp_advisor.wording import VISIBLE_GIB, compared, fit, gib

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.costs.estimate import Estimate


def _strategies(run: PlannedRun) -> list[str]:
    """Strategies that the library has and the layers can use."""
    setting = schema(run.plan.library).described("activation_checkpointing")
    if setting is None or "contiguous" not in setting.choices:
        return ["each"]
    layers = -(-run.model.layer_count // run.plan.pipeline_parallel_degree)
    return [str(name) for name in checkpointing_strategies(layers, run.plan.tensor_parallel_degree) if name]


def _checkpointings(run: PlannedRun) -> dict[str, WhatIf]:
    """No checkpointing, and the other strategies."""
    variants = {strategy: vary(run, activation_checkpointing=strategy) for strategy in _strategies(run)}
    return {"none": without(run, activation_checkpointing=False), **variants}


def _on_checkpointing(
    run: PlannedRun, comparisons: Mapping[str, WhatIf], estimates: Mapping[str, Estimate]
) -> Conclusion:
    """Compare the plan's strategy with none and with the others."""
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
    strategies = {name: estimates[name] for name in _strategies(run) if name != strategy and name in estimates}
    if strategies:
        best = min(strategies, key=lambda name: strategies[name].needed_gib)
        leanest = strategies[best]
        saves = leanest.needed_gib < run.estimate.needed_gib
        lead = "Of the other strategies," if saves else "No other strategy needs less memory. The next,"
        unit = {"each": "one unit per layer", "contiguous": "one unit for all layers of a stage"}.get(
            best, f"units of {best.removeprefix('group_')} layers"
        )
        sentences.append(
            f"{lead} {best!r} ({unit}){comparisons[best].aside}{' needs the least memory:' if saves else ','} it keeps"
            f" {gib(leanest.memory.peak.activations_gib)} of activations per GPU; the plan"
            f" {compared(run.estimate, leanest)}. It {fit(leanest, run.min_fit_probability)}."
        )
    return against(run, "used", none, estimate, " ".join(sentences))


def _offloading(run: PlannedRun) -> dict[str, WhatIf]:
    """The plan with offloading the other way."""
    if not run.plan.activation_checkpointing:
        return {}
    change = without if run.plan.offload_activations else vary
    return {"other": change(run, offload_activations=not run.plan.offload_activations)}


def _on_offloading(run: PlannedRun, comparisons: Mapping[str, WhatIf], estimates: Mapping[str, Estimate]) -> Conclusion:
    """Compare offloading with none."""
    if not comparisons:
        because = "Offloading moves checkpointed activations, and this plan does not use activation checkpointing."
        return Conclusion(decision="not possible", because=because)
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


activation_checkpointing = Argument(_checkpointings, _on_checkpointing)
offloading = Argument(_offloading, _on_offloading)
