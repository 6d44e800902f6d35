"""The nearest of AWS's reference configurations: how it fares, what differs and why."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

from smp_advisor.costs import estimate as estimate_plan
from smp_advisor.guidance.apart import apart
from smp_advisor.guidance.aws_reference import largest_tested_ratio, reference_rows, tested_extrapolation
from smp_advisor.guidance.case import Case
from smp_advisor.guidance.differences import differences
from smp_advisor.guidance.extrapolation import extrapolate
from smp_advisor.guidance.reference_smp_v2 import nearest_reference_smp_v2
from smp_advisor.guidance.step import Reference
from smp_advisor.guidance.wording import fit, gib, listed, plural, throughput

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.aws_reference import ReferenceRow
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["nearest_reference", "nearest_row"]


def nearest_row(model: Model, cluster: Cluster) -> ReferenceRow:
    """The row nearest in parameter count and number of GPUs, by the sum of both ratios' logarithms."""

    def distance(row: ReferenceRow) -> float:
        size = math.log(model.parameter_count / row.model.parameter_count)
        return abs(size) + abs(math.log(cluster.gpus / row.cluster.gpus))

    return min(reference_rows(), key=distance)


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
) -> Reference | None:
    """Set a plan against the nearest configuration that AWS ran.

    The row is estimated by the same cost model; each differing setting is argued by estimating the user's own model
    with the row's setting; and AWS's procedure of extrapolation is followed from the row to the user's model. None for
    libraries of which AWS publishes no such configurations, and for models of images, which none of them is like.
    """
    if not model.reads_tokens:
        return None
    case = Case(
        model=model, cluster=cluster, job=job, plan=plan, estimate=estimate, min_fit_probability=min_fit_probability
    )
    if plan.library != "smp-v1":
        return nearest_reference_smp_v2(case) if plan.library == "smp-v2" else None
    row = nearest_row(model, cluster)
    there = _row_estimate(row)
    return Reference(
        name=row.name,
        summary=_summary(row, there),
        fits=there.fits,
        needed_gib=there.needed_gib,
        differences=differences(case, row),
        extrapolation=f"{_distance(case, row)} {_procedure(case, row)}",
        source_url=row.source_url,
        assumed=row.assumed,
    )


def _summary(row: ReferenceRow, estimate: Estimate) -> str:
    plan = row.plan
    pipeline = (
        f"pipeline degree {plan.pipeline_parallel_degree} with {plan.microbatches} microbatches"
        f" ({plan.active_in_flight} active), "
        if plan.pipeline_parallel_degree > 1
        else ""
    )
    return (
        f"AWS ran GPT-2 with {row.name.replace(' B', ' billion')} parameters, sequence length {row.job.sequence_length}"
        f" and vocabulary {row.model.shape.vocab:,} on {row.cluster.nodes} x {row.cluster.instance.name} with tensor"
        f" degree {plan.tensor_parallel_degree}, {pipeline}optimizer-state sharding, checkpointing of each layer and"
        f" batch {plan.batch_size} a tensor-parallel group; by the cost model it processes"
        f" {throughput(estimate.samples_per_second)}."
    )


def _distance(case: Case, row: ReferenceRow) -> str:
    """How far the user's case is from the row."""
    parts = apart(case, row)
    if not parts:
        return f"This is the size, sequence length and cluster of AWS's {row.name} row."
    size = case.model.parameter_count / row.model.parameter_count
    beyond = size > largest_tested_ratio() or size < 1 / largest_tested_ratio()
    reach = f"beyond the factor of {largest_tested_ratio():g} in parameters over which AWS's page extrapolates"
    within = f"within the factor of {largest_tested_ratio():g} in parameters over which AWS's page extrapolates"
    return (
        f"Compared with AWS's {row.name} row this is {listed(parts)}, {reach if beyond else within}."
        f" {tested_extrapolation()}."
    )


def _procedure(case: Case, row: ReferenceRow) -> str:
    """What AWS's procedure finds from the row, on the user's model and cluster."""
    least = case.min_fit_probability
    path = extrapolate(row, model=case.model, cluster=case.cluster, job=case.job, min_fit_probability=least)
    now = f"this plan processes {throughput(case.estimate.samples_per_second)}"
    if not path.trials:
        return f"The row's settings cannot be carried over to this model and cluster: {path.obstacle}"
    first = path.trials[0]
    needed = gib(first.estimate.needed_gib)
    opening = f"Carried over to this model and cluster, the row's settings need {needed} a GPU"
    if first.fits:
        return (
            f"{opening}, which {fit(first.estimate, least)}, and process"
            f" {throughput(first.estimate.samples_per_second)}; {now}."
        )
    found = path.found
    if found is None:
        return (
            f"{opening}, which {fit(first.estimate, least)}; of the {plural(len(path.trials), 'setting')} on the way to"
            f" the smallest batch and the largest degree none fits."
        )
    return (
        f"{opening}, which {fit(first.estimate, least)}; the first setting on the way that fits is"
        f" batch_size={found.plan.batch_size} with tensor_parallel_degree={found.plan.tensor_parallel_degree}"
        f" ({gib(found.estimate.needed_gib)} a GPU, {throughput(found.estimate.samples_per_second)}); {now}."
    )
