"""Activation offloading to host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.guidance.techniques.conclusion import Conclusion, why_not_used, why_used
from smp_advisor.guidance.what_if import vary, without
from smp_advisor.libraries.layout import layout_of
from smp_advisor.libraries.schema import schema
from smp_advisor.wording import figures, gib

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.planned_run import PlannedRun
    from smp_advisor.guidance.what_if import WhatIf

__all__ = ["comparisons", "conclude"]


def comparisons(run: PlannedRun) -> dict[str, WhatIf]:
    """The plan with offloading the other way."""
    if not run.plan.activation_checkpointing:
        return {}
    change = without if run.plan.offload_activations else vary
    return {"other": change(run, offload_activations=not run.plan.offload_activations)}


def conclude(run: PlannedRun, comparisons: Mapping[str, WhatIf], estimates: Mapping[str, Estimate]) -> Conclusion:
    """Compare offloading with none."""
    if not run.plan.activation_checkpointing:
        return Conclusion(
            decision="not possible",
            because="Offloading moves checkpointed activations, and this plan does not use activation checkpointing.",
        )
    comparison, estimate = comparisons["other"], estimates.get("other")
    alternative = comparison.plan if estimate else None
    limits = "" if _moves_running(run) else _limits(run)
    if run.plan.offload_activations:
        host = f"take {gib(run.estimate.host_memory_gib_per_node)} of host memory per node."
        lead = (
            f"Checkpointed activations {host} Those of {_horizon(run)} layers are on the GPU at a time."
            if _moves_running(run)
            else f"Activations of waiting microbatches {host}"
        )
        return Conclusion(
            decision="used",
            because=f"{limits}{lead} {why_used(run, comparison, estimate)}",
            figures=figures(run.estimate, estimate),
            alternative=alternative,
        )
    return Conclusion(
        decision="not used",
        because=limits + why_not_used(run, comparison, estimate, name="offload_activations"),
        figures=figures(estimate, run.estimate),
        alternative=alternative,
    )


def _moves_running(run: PlannedRun) -> bool:
    """Whether the library also moves the activations of the microbatch that runs."""
    return bool(layout_of([run.plan], run.job, run.cluster).offload_running[0])


def _horizon(run: PlannedRun) -> int:
    horizon = run.plan.activation_loading_horizon
    if horizon is None:
        horizon = schema(run.plan.library).defaults(run.plan.version)["activation_loading_horizon"]
    return int(horizon)


def _limits(run: PlannedRun) -> str:
    if run.plan.microbatches == 1:
        return "With a single microbatch, no microbatch waits whose activations could leave the GPU. "
    if run.plan.pipeline_parallel_degree == 1:
        return (
            "Without a pipeline, one microbatch runs at a time: no microbatch waits whose activations could leave the"
            " GPU. "
        )
    return ""
