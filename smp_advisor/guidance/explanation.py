"""The explanation of a plan: the library's best practices in order, argued with estimates of alternative plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.guidance import batch, memory, parallelism, statements
from smp_advisor.guidance.conclusion import Argument, Conclusion, brief_not_used, brief_used
from smp_advisor.guidance.ladder import technique_fields
from smp_advisor.guidance.practices import Step, order, practice, subset_tip
from smp_advisor.guidance.what_if import PlannedRun, evaluate_best
from smp_advisor.wording import first_sentence

if TYPE_CHECKING:
    from collections.abc import Collection

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model


ARGUMENTS: dict[str, Argument] = {
    "optimizer_state_sharding": memory.optimizer_state_sharding,
    "sharding": memory.sharding,
    "activation_checkpointing": memory.activation_checkpointing,
    "tensor_parallelism": parallelism.tensor_parallelism,
    "pipeline_parallelism": parallelism.pipeline_parallelism,
    "partitions": parallelism.degree("partitions"),
    "tensor_parallel_degree": parallelism.degree("tensor_parallel_degree", "tensor_parallel"),
    "context_parallelism": parallelism.degree("context_parallel_degree", "context_parallel"),
    "expert_parallelism": parallelism.degree("expert_parallel_degree", "expert_parallel"),
    "offloading": memory.offloading,
    "batch": batch.accumulation,
    "microbatches": batch.microbatches,
    **statements.ARGUMENTS,
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
    arguments = {
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
