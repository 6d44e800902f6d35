"""Practice 6: activation offloading to host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.guidance.techniques.finding import Finding, why_not_used, why_used
from smp_advisor.guidance.what_if import vary
from smp_advisor.guidance.wording import figures, gib
from smp_advisor.libraries.schema import schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.case import Case
    from smp_advisor.guidance.what_if import WhatIf

__all__ = ["ask", "find"]


def ask(case: Case) -> dict[str, WhatIf]:
    """The plan with offloading the other way."""
    if not case.plan.activation_checkpointing:
        return {}
    return {"other": vary(case, offload_activations=not case.plan.offload_activations)}


def find(case: Case, asked: Mapping[str, WhatIf], answers: Mapping[str, Estimate]) -> Finding:
    """Compare offloading with none."""
    if not case.plan.activation_checkpointing:
        return Finding(
            decision="not possible",
            because="Offloading moves checkpointed activations, and this plan does not use activation checkpointing.",
        )
    other, estimate = asked["other"], answers.get("other")
    alternative = other.plan if estimate else None
    if case.plan.offload_activations:
        host = gib(case.estimate.host_memory_gib_per_node)
        lead = (
            f"Checkpointed activations take {host} of a node's host memory; those of {_horizon(case)} layers are on the"
            " GPU at a time."
            if case.plan.library == "smp-v2"
            else f"Activations of waiting microbatches take {host} of a node's host memory."
        )
        return Finding(
            decision="used",
            because=f"{_limits(case)}{lead} {why_used(case, other, estimate)}",
            figures=figures(case.estimate, estimate),
            alternative=alternative,
        )
    return Finding(
        decision="not used",
        because=_limits(case) + why_not_used(case, other, estimate, name="offload_activations"),
        figures=figures(estimate, case.estimate),
        alternative=alternative,
    )


def _horizon(case: Case) -> int:
    horizon = case.plan.activation_loading_horizon
    return int(
        schema("smp-v2").defaults(case.plan.version)["activation_loading_horizon"] if horizon is None else horizon
    )


def _limits(case: Case) -> str:
    if case.plan.library != "smp-v1":
        return ""
    if case.plan.microbatches == 1:
        return "With a single microbatch there is none waiting whose activations could leave the GPU. "
    if case.plan.pipeline_parallel_degree == 1:
        return "Without a pipeline one microbatch runs at a time, so none waits whose activations could leave the GPU. "
    return ""
