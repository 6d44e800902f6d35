"""The explanation of a plan: the library's best practices in order, argued with estimates of alternative plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from smp_advisor.guidance.planned_run import PlannedRun
from smp_advisor.guidance.practices import order, practice, subset_tip
from smp_advisor.guidance.step import Step
from smp_advisor.guidance.techniques import (
    accumulation,
    activation_checkpointing,
    batch,
    compiler,
    instance,
    offloading,
    optimizer_state_sharding,
    pipeline_parallelism,
    sharding,
    starting,
    tensor_parallelism,
)
from smp_advisor.guidance.techniques.degrees import Degree
from smp_advisor.guidance.what_if import evaluate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.techniques.conclusion import Conclusion
    from smp_advisor.guidance.what_if import WhatIf
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["ARGUMENTS", "explain"]


class _Argument(Protocol):
    """The argument for or against one technique."""

    def comparisons(self, run: PlannedRun) -> dict[str, WhatIf]:
        """Plans to compare with."""

    def conclude(
        self, run: PlannedRun, comparisons: Mapping[str, WhatIf], estimates: Mapping[str, Estimate]
    ) -> Conclusion:
        """Decision and reasons."""


ARGUMENTS: dict[str, Any] = {
    "instance": instance,
    "optimizer_state_sharding": optimizer_state_sharding,
    "sharding": sharding,
    "activation_checkpointing": activation_checkpointing,
    "tensor_parallelism": tensor_parallelism,
    "pipeline_parallelism": pipeline_parallelism,
    "partitions": Degree(key="partitions"),
    "tensor_parallel_degree": Degree(key="tensor_parallel_degree", technique="tensor_parallel"),
    "context_parallelism": Degree(key="context_parallel_degree", technique="context_parallel"),
    "expert_parallelism": Degree(key="expert_parallel_degree", technique="expert_parallel"),
    "offloading": offloading,
    "batch": accumulation,
    "microbatches": batch,
    "mixed_precision": starting.mixed_precision,
    "collectives": starting.collectives,
    "delayed_initialization": starting.delayed_initialization,
    **compiler.ARGUMENTS,
}
"""Arguments by the name that ``practices.toml`` has for them: `Practice.argument`."""


def explain(
    model: Model,
    cluster: Cluster,
    job: Job,
    plan: Plan,
    estimate: Estimate,
    *,
    min_fit_probability: float = 0.95,
    objective: str = "throughput",
) -> tuple[Step, ...]:
    """Explain for each of the library's best practices, in order, whether the plan uses it and why.

    Every sentence compares two estimates of the same cost model: of the plan, and of the plan with the technique turned
    the other way and everything else equal, including the global batch. Other settings that the library requires to
    change are named in the sentence.

    Parameters
    ----------
    model, cluster, job, plan
        The run to explain.
    estimate
        Estimate of the plan.
    min_fit_probability
        Required probability of fitting.
    objective
        Objective of the search that chose the plan.

    Returns
    -------
    tuple of Step
        One per technique, in order.
    """
    run = PlannedRun(
        model=model,
        cluster=cluster,
        job=job,
        plan=plan,
        estimate=estimate,
        min_fit_probability=min_fit_probability,
        objective=objective,
    )
    techniques = order(plan.library)
    arguments: dict[str, _Argument] = {name: ARGUMENTS[practice(name, plan.library).argument] for name in techniques}
    comparisons = {name: argument.comparisons(run) for name, argument in arguments.items()}
    estimates = evaluate(
        model, {(name, key): plan for name, plans in comparisons.items() for key, plan in plans.items()}
    )
    steps: list[Step] = []
    tip = subset_tip(plan.library) if run.fits else ""
    for position, technique in enumerate(techniques, 1):
        own = {key: value for (name, key), value in estimates.items() if name == technique}
        conclusion = arguments[technique].conclude(run, comparisons[technique], own)
        source = practice(conclusion.practice or technique, plan.library)
        because = conclusion.because
        if tip and conclusion.decision == "not used" and conclusion.alternative is not None:
            # Given once, with the first technique whose absence costs nothing.
            other = next(value for value in own.values() if value.plan == conclusion.alternative)
            if other.samples_per_second <= estimate.samples_per_second:
                because, tip = f"{because} AWS's tip applies: {tip}.", ""
        steps.append(
            Step(
                order=position,
                technique=technique,
                title=source.title,
                decision=conclusion.decision,
                because=because,
                trade_off=source.trade_off,
                figures=conclusion.figures,
                source_title=source.source_title,
                source_url=source.source_url,
                alternative=conclusion.alternative,
            )
        )
    return tuple(steps)
