"""The nearest of AWS's reference configurations of SMP v2: how it fares, and what differs."""

from __future__ import annotations

import math
import tomllib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from smp_advisor.cluster import Cluster
from smp_advisor.costs import estimate as estimate_plan
from smp_advisor.guidance.apart import apart
from smp_advisor.guidance.aws_reference import ReferenceRow
from smp_advisor.guidance.step import Difference, Reference
from smp_advisor.guidance.what_if import evaluate, vary
from smp_advisor.guidance.wording import compared, fit, listed, throughput
from smp_advisor.libraries.groups import shard_degree
from smp_advisor.libraries.plan import Plan
from smp_advisor.workload.job import Job
from smp_advisor.workload.model import Model

if TYPE_CHECKING:
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.case import Case
    from smp_advisor.guidance.what_if import WhatIf

__all__ = ["nearest_reference_smp_v2", "reference_rows_smp_v2"]

_SETTINGS = {
    "hybrid_shard_degree": "Hybrid shard degree",
    "tensor_parallel_degree": "Tensor parallel degree",
    "context_parallel_degree": "Context parallel degree",
    "activation_checkpointing": "Activation checkpointing",
    "offload_activations": "Activation offloading",
    "batch_size": "Batch of a GPU group",
}


@cache
def reference_rows_smp_v2() -> tuple[ReferenceRow, ...]:
    """The rows of the page, smallest first."""
    text = (files("smp_advisor.guidance") / "data" / "aws_reference_smp-v2.toml").read_text(encoding="utf-8")
    page = tomllib.loads(text)
    return tuple(_row(page, entry) for entry in page["row"])


def _row(page: dict[str, Any], entry: dict[str, Any]) -> ReferenceRow:
    model = Model.from_shape(
        **entry["shape"],
        vocab=page["vocab"],
        family=page["family"],
        max_positions=page["sequence_length"],
        name=f"Llama 2 {entry['name']} (AWS reference)",
    )
    return ReferenceRow(
        name=entry["name"],
        model=model,
        cluster=Cluster(page["instance"], entry["nodes"]),
        job=Job(sequence_length=page["sequence_length"], precision="bf16", attention="fused"),
        plan=Plan(library="smp-v2", **entry["plan"]),
        assumed=tuple(filter(None, (entry["shape_assumed"], *page["assumed"]))),
        source_title=page["title"],
        source_url=page["url"],
        date=page["date"],
    )


@cache
def _row_estimate(row: ReferenceRow) -> Estimate:
    return estimate_plan(row.model, row.cluster, row.job, row.plan)


def nearest_reference_smp_v2(case: Case) -> Reference:
    """Set a plan against the nearest configuration that AWS ran.

    Nearest in parameter count and number of GPUs, by the sum of both ratios' logarithms. Each differing setting is
    argued by estimating the user's own model with the row's setting.
    """

    def distance(row: ReferenceRow) -> float:
        size = math.log(case.model.parameter_count / row.model.parameter_count)
        return abs(size) + abs(math.log(case.cluster.gpus / row.cluster.gpus))

    row = min(reference_rows_smp_v2(), key=distance)
    there = _row_estimate(row)
    return Reference(
        name=row.name,
        summary=_summary(row, there),
        fits=there.fits,
        needed_gib=there.needed_gib,
        differences=_differences(case, row),
        extrapolation=_distance(case, row),
        source_url=row.source_url,
        assumed=row.assumed,
    )


def _summary(row: ReferenceRow, estimate: Estimate) -> str:
    plan = row.plan
    tensor = f", tensor degree {plan.tensor_parallel_degree}" if plan.tensor_parallel_degree > 1 else ""
    offload = " and offloading" if plan.offload_activations else ""
    return (
        f"AWS ran Llama 2 with {row.name.replace(' B', ' billion')} parameters, sequence length"
        f" {row.job.sequence_length:,} on {row.cluster.nodes} x {row.cluster.instance.name} with shard degree"
        f" {plan.hybrid_shard_degree}{tensor}, checkpointing{offload} and batch {plan.batch_size}; by the cost model it"
        f" processes {throughput(estimate.samples_per_second)}."
    )


def _differences(case: Case, row: ReferenceRow) -> tuple[Difference, ...]:
    def own(plan: Plan, name: str, cluster: Cluster) -> Any:
        return shard_degree(plan, cluster) if name == "hybrid_shard_degree" else getattr(plan, name)

    differing = {
        name: (own(row.plan, name, row.cluster), own(case.plan, name, case.cluster))
        for name in _SETTINGS
        if own(row.plan, name, row.cluster) != own(case.plan, name, case.cluster)
    }
    changes: dict[str, dict[str, Any]] = {name: {name: there} for name, (there, _) in differing.items()}
    asked: dict[str, WhatIf] = {name: vary(case, **change) for name, change in changes.items()}
    answers = evaluate(case.model, asked)
    return tuple(
        Difference(
            setting=_SETTINGS[name],
            reference=_value(there),
            recommended=_value(here),
            because=_because(case, f"{_SETTINGS[name].lower()} {_value(there)}", asked[name], answers.get(name)),
        )
        for name, (there, here) in differing.items()
    )


def _value(value: Any) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def _because(case: Case, reference: str, question: WhatIf, estimate: Estimate | None) -> str:
    if estimate is None:
        return f"The row's setting is not possible here: {question.obstacle}"
    return (
        f"With AWS's {reference}{question.aside} the plan {compared(case.estimate, estimate)}; it"
        f" {fit(estimate, case.min_fit_probability)}."
    )


def _distance(case: Case, row: ReferenceRow) -> str:
    parts = apart(case, row)
    if not parts:
        return f"This is the size, sequence length and cluster of AWS's {row.name} row."
    return f"Compared with AWS's {row.name} row this is {listed(parts)}."
