"""The nearest of AWS's reference configurations: its estimate, and how the recommendation differs from it."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

from smp_advisor.costs import estimate as estimate_plan
from smp_advisor.guidance.aws_reference import reference_rows
from smp_advisor.guidance.differences import differences
from smp_advisor.guidance.extrapolation import extrapolate
from smp_advisor.guidance.planned_run import PlannedRun
from smp_advisor.guidance.step import Reference
from smp_advisor.libraries.groups import shard_degree
from smp_advisor.wording import fit, gib, listed, percent, plural, throughput
from smp_advisor.workload.counts import format_count

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.aws_reference import ReferenceRow
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["nearest_reference"]

_SAME_SIZE = 1.05
"""Ratio up to which two parameter counts are the same size."""


@cache
def _row_estimate(row: ReferenceRow) -> Estimate:
    return estimate_plan(row.model, row.cluster, row.job, row.plan)


def nearest_reference(
    model: Model,
    cluster: Cluster,
    job: Job,
    plan: Plan,
    estimate: Estimate,
    *,
    min_fit_probability: float = 0.95,
    title: str = "The recommended plan",
) -> Reference | None:
    """Compare a plan with the nearest configuration that AWS ran.

    Nearest in parameter count and number of GPUs, by the sum of both ratios' logarithms. The same cost model estimates
    the row. Each difference is argued by an estimate of the user's model with the row's setting. Where AWS describes a
    procedure of extrapolation, it is followed from the row to the user's model. None for libraries without published
    configurations, and for models of images, which no row resembles. `title` is that of the plan in sentences.
    """
    rows = reference_rows(plan.library)
    if not rows or not model.reads_tokens:
        return None
    run = PlannedRun(
        model=model, cluster=cluster, job=job, plan=plan, estimate=estimate, min_fit_probability=min_fit_probability
    )

    def distance(row: ReferenceRow) -> float:
        size = math.log(model.parameter_count / row.model.parameter_count)
        return abs(size) + abs(math.log(cluster.gpus / row.cluster.gpus))

    row = min(rows, key=distance)
    row_estimate = _row_estimate(row)
    procedure = _procedure(run, row, title) if row.procedure else ""
    return Reference(
        name=row.name,
        summary=_summary(row, row_estimate),
        fits=row_estimate.fits,
        needed_gib=row_estimate.needed_gib,
        differences=differences(run, row),
        extrapolation=" ".join(filter(None, (_distance(run, row), procedure))),
        source_url=row.source_url,
        assumed=row.assumed,
    )


def _summary(row: ReferenceRow, estimate: Estimate) -> str:
    plan, shards = row.plan, shard_degree(row.plan, row.cluster)
    settings = [f"shard degree {shards}"] if shards > 1 else []
    if plan.tensor_parallel_degree > 1:
        settings.append(f"tensor parallel degree {plan.tensor_parallel_degree}")
    if plan.pipeline_parallel_degree > 1:
        settings.append(
            f"pipeline parallel degree {plan.pipeline_parallel_degree} with {plan.microbatches} microbatches"
            f" ({plan.active_in_flight} active)"
        )
    if plan.shard_optimizer_state:
        settings.append("optimizer-state sharding")
    if plan.activation_checkpointing:
        settings.append("checkpointing of each layer")
    if plan.offload_activations:
        settings.append("offloading")
    settings.append(f"batch size {plan.batch_size}")
    return (
        f"AWS ran {row.model_name} with {row.name.replace(' B', ' billion')} parameters, sequence length"
        f" {row.job.sequence_length:,} and vocabulary {row.model.shape.vocab:,} on {row.cluster.nodes} x"
        f" {row.cluster.instance.name} with {listed(settings)}. The cost model estimates"
        f" {throughput(estimate)}."
    )


def _distance(run: PlannedRun, row: ReferenceRow) -> str:
    """How far the user's run is from the row."""
    size = run.model.parameter_count / row.model.parameter_count
    length = run.sequence_length / row.job.sequence_length
    gpus = run.cluster.gpus / row.cluster.gpus
    parts = []
    if max(size, 1 / size) > _SAME_SIZE:
        parts.append(f"{_ratio(size)} the parameters ({format_count(run.model.parameter_count)})")
    if length != 1:
        parts.append(f"{_ratio(length)} the sequence length")
    if gpus != 1:
        parts.append(f"{_ratio(gpus)} the GPUs ({run.cluster.gpus})")
    if run.cluster.instance != row.cluster.instance:
        parts.append(f"another instance ({run.cluster.instance.name})")
    if run.model.family != row.model.family:
        parts.append(f"another architecture ({run.model.family})")
    if not parts:
        return f"Size, sequence length and cluster are those of AWS's {row.name} row."
    sentence = f"Compared with AWS's {row.name} row, this run has {listed(parts)}."
    if not row.procedure:
        return sentence
    largest = row.largest_parameter_ratio
    reach = "beyond" if size > largest or size < 1 / largest else "within"
    return (
        f"{sentence} This is {reach} the factor of {largest:g} in parameters over which AWS's page extrapolates."
        f" {row.procedure}"
    )


def _ratio(value: float) -> str:
    if value < 1:
        return f"{percent(value)} of"
    return f"{value:.2g} times" if value < 10 else f"{value:,.0f} times"


def _procedure(run: PlannedRun, row: ReferenceRow, title: str) -> str:
    """Result of AWS's procedure, from the row to the user's model and cluster. `title` is that of the run's plan."""
    required = run.min_fit_probability
    path = extrapolate(row, model=run.model, cluster=run.cluster, job=run.job, min_fit_probability=required)
    if not path.trials:
        return f"The row's settings are not possible with this model and cluster: {path.obstacle}"
    first = path.trials[0].estimate
    opening = (
        f"With this model and cluster, the row's settings need {gib(first.needed_gib)} per GPU. The plan"
        f" {fit(first, required)}."
    )
    own = f"{title} processes {throughput(run.estimate)}."
    if path.trials[0].fits:
        return f"{opening} It processes {throughput(first)}. {own}"
    trial = path.first_fit
    if trial is None:
        return (
            f"{opening} None of the {plural(len(path.trials), 'setting')} down to the smallest batch and up to the"
            " largest degree fits."
        )
    return (
        f"{opening} The first setting of the procedure that fits is batch_size={trial.plan.batch_size} with"
        f" tensor_parallel_degree={trial.plan.tensor_parallel_degree} ({gib(trial.estimate.needed_gib)} per GPU,"
        f" {throughput(trial.estimate)}). {own}"
    )
