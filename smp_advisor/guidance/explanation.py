"""The explanation of a plan: the library's best practices in order, argued with estimates of alternative plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from smp_advisor.guidance.planned_run import PlannedRun
from smp_advisor.guidance.practices import order, practice, subset_tip
from smp_advisor.guidance.rung_titles import technique_fields
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
from smp_advisor.guidance.techniques.conclusion import brief_not_used, brief_used
from smp_advisor.guidance.techniques.degrees import Degree
from smp_advisor.guidance.what_if import evaluate_best
from smp_advisor.wording import first_sentence

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.techniques.conclusion import Conclusion
    from smp_advisor.guidance.what_if import WhatIf
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["ARGUMENTS", "explain", "steps_of"]


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
    pins: frozenset[str] = frozenset(),
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
    pins
        Fields of the plan that the user fixed.

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
        pins=pins,
    )
    return steps_of(run)


def steps_of(run: PlannedRun, techniques: Collection[str] | None = None) -> tuple[Step, ...]:
    """The explanation of a planned run, see `explain`; of some techniques if they are listed."""
    library, estimate = run.plan.library, run.estimate
    arguments: dict[str, _Argument] = {
        name: ARGUMENTS[practice(name, library).argument]
        for name in order(library)
        if techniques is None or name in techniques
    }
    plans = {
        (name, key): comparison
        for name, argument in arguments.items()
        for key, comparison in argument.comparisons(run).items()
    }
    compared, estimates = evaluate_best(run, plans)
    steps: list[Step] = []
    tip = subset_tip(library) if run.fits else ""
    for technique, argument in arguments.items():
        own = {key: value for (name, key), value in estimates.items() if name == technique}
        comparisons = {key: value for (name, key), value in compared.items() if name == technique}
        conclusion = argument.conclude(run, comparisons, own)
        outcome = next((own[key] for key in own if comparisons[key].plan == conclusion.alternative), None)
        source = practice(conclusion.practice or technique, library)
        details = conclusion.because
        no_loss = outcome is not None and outcome.samples_per_second <= estimate.samples_per_second
        if tip and conclusion.decision == "not used" and no_loss:
            # Given once, with the first technique whose absence costs nothing.
            details, tip = f"{details} AWS's tip applies: {tip}.", ""
        steps.append(
            Step(
                order=order(library).index(technique) + 1,
                technique=technique,
                title=source.title,
                decision=conclusion.decision,
                because=_brief(run, technique, conclusion, outcome),
                details=details,
                trade_off=source.trade_off,
                figures=conclusion.figures,
                source_title=source.source_title,
                source_url=source.source_url,
                alternative=conclusion.alternative,
                outcome=outcome,
            )
        )
    return tuple(steps)


def _brief(run: PlannedRun, technique: str, conclusion: Conclusion, outcome: Estimate | None) -> str:
    """The short reason for a conclusion."""
    text = conclusion.brief
    fields = technique_fields(practice(technique, run.plan.library).argument)
    if not text and outcome is not None and fields and conclusion.decision != "not possible":
        used = conclusion.decision == "used"
        text = brief_used(run, outcome, plan=conclusion.alternative) if used else brief_not_used(run, outcome)
    text = text or first_sentence(conclusion.because)
    return f"Fixed by you. {text}" if run.pins & fields else text
