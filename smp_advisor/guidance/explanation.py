"""The explanation of a plan: AWS's best practices in order, argued with the cost model's own counterfactuals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from smp_advisor.guidance.case import Case
from smp_advisor.guidance.practices import order as order_of
from smp_advisor.guidance.practices import practice, subset_tip
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
    from smp_advisor.guidance.techniques.finding import Finding
    from smp_advisor.guidance.what_if import WhatIf
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["explain"]


class _Room(Protocol):
    """What argues about one technique."""

    def ask(self, case: Case) -> dict[str, WhatIf]:
        """Plans to compare with."""

    def find(self, case: Case, asked: Mapping[str, WhatIf], answers: Mapping[str, Estimate]) -> Finding:
        """Decision and reasons."""


_DATA_PARALLEL: dict[str, Any] = {
    "instance": instance,
    "activation_checkpointing": activation_checkpointing,
    "sharding": sharding,
    "batch": accumulation,
}

_ROOMS: dict[str, dict[str, Any]] = {
    "smp-v1": {
        "instance": instance,
        "optimizer_state_sharding": optimizer_state_sharding,
        "activation_checkpointing": activation_checkpointing,
        "tensor_parallelism": tensor_parallelism,
        "pipeline_parallelism": pipeline_parallelism,
        "offloading": offloading,
        "batch": batch,
    },
    "smp-v1-tensorflow": {
        "instance": instance,
        "partitions": Degree(key="partitions"),
        "batch": accumulation,
    },
    "smp-v2": {
        **_DATA_PARALLEL,
        "mixed_precision": starting.mixed_precision,
        "collectives": starting.collectives,
        "delayed_initialization": starting.delayed_initialization,
        "offloading": offloading,
        "tensor_parallelism": Degree(key="tensor_parallel_degree", technique="tensor_parallel"),
        "context_parallelism": Degree(key="context_parallel_degree", technique="context_parallel"),
        "expert_parallelism": Degree(key="expert_parallel_degree", technique="expert_parallel"),
    },
    "training-compiler": {"instance": instance, **compiler.ROOMS},
    "ddp": _DATA_PARALLEL,
    "fsdp": _DATA_PARALLEL,
}
"""What argues about each technique, by library."""


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
    """Go through AWS's best practices in order and say of each technique whether the plan uses it, and why.

    Every sentence argues from two estimates of the same cost model: the plan's own, and that of the plan with the
    technique turned the other way, everything else equal (the global batch included). What else the library makes
    move is named in the sentence.

    Parameters
    ----------
    model, cluster, job, plan
        What is explained.
    estimate
        Of the plan.
    min_fit_probability
        From which probability on a plan counts as fitting.
    objective
        What the plan was chosen for.

    Returns
    -------
    tuple of Step
        One a technique, in order.
    """
    case = Case(
        model=model,
        cluster=cluster,
        job=job,
        plan=plan,
        estimate=estimate,
        min_fit_probability=min_fit_probability,
        objective=objective,
    )
    names = order_of(plan.library)
    rooms: dict[str, _Room] = {name: _ROOMS[plan.library][name] for name in names}
    asked: dict[str, dict[str, WhatIf]] = {name: room.ask(case) for name, room in rooms.items()}
    answers = evaluate(model, {(name, key): one for name, some in asked.items() for key, one in some.items()})
    steps: list[Step] = []
    from_aws = plan.library in {"smp-v1", "smp-v2"}
    tip = f" AWS's tip applies: {subset_tip()}." if case.fits and from_aws else ""
    for order, technique in enumerate(names, 1):
        find = rooms[technique].find
        own = {key: one for (name, key), one in answers.items() if name == technique}
        found = find(case, asked[technique], own)
        stated = practice(found.practice or technique, plan.library)
        because = found.because
        if found.decision == "not used" and found.alternative is not None:
            # Said once, of the first technique that the plan does well without.
            other = next(one for one in own.values() if one.plan == found.alternative)
            slower = other.samples_per_second <= estimate.samples_per_second
            because, tip = (because + tip, "") if slower else (because, tip)
        steps.append(
            Step(
                order=order,
                technique=technique,
                title=stated.title,
                decision=found.decision,
                because=because,
                trade_off=stated.trade_off,
                figures=found.figures,
                source_title=stated.source_title,
                source_url=stated.source_url,
                alternative=found.alternative,
            )
        )
    return tuple(steps)
