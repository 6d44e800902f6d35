"""Whether sharded state still fits on half of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.cluster import Cluster
from smp_advisor.costs import estimate as estimate_plan
from smp_advisor.guidance.case import Case
from smp_advisor.guidance.practices import practice
from smp_advisor.guidance.step import Pitfall
from smp_advisor.guidance.what_if import evaluate, vary
from smp_advisor.guidance.wording import fit, gib, plural
from smp_advisor.libraries.groups import shard_degree

if TYPE_CHECKING:
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["downsizing"]

DOWNSIZING = "downsizing"
"""`Pitfall.id` of the warning."""

_PRACTICES = {"smp-v1": "optimizer_state_sharding", "smp-v2": "sharding", "fsdp": "sharding"}
"""The practice that speaks of what is sharded."""


def downsizing(
    model: Model,
    cluster: Cluster,
    job: Job,
    plan: Plan,
    estimate: Estimate | None = None,
    *,
    min_fit_probability: float = 0.95,
) -> Pitfall | None:
    """Warn where a plan that fits would not fit on half of the nodes, because its state is sharded over them.

    Each replica keeps its batch, so that only the sharding changes. None where nothing is sharded, where the cluster
    has a single node, where the plan does not fit to begin with, or where it fits on half as well.
    """
    sharded = (
        plan.shard_optimizer_state or plan.sharded_data_parallel_degree > 1
        if plan.library == "smp-v1"
        else shard_degree(plan, cluster) > 1
    )
    if not sharded or cluster.nodes < 2:
        return None
    now = estimate or estimate_plan(model, cluster, job, plan)
    case = Case(model=model, cluster=cluster, job=job, plan=plan, estimate=now, min_fit_probability=min_fit_probability)
    if not case.fits:
        return None
    half = Cluster(cluster.instance, cluster.nodes // 2)
    asked = vary(case, cluster=half, hold_global_batch=False)
    answer = evaluate(model, {"half": asked}).get("half")
    if answer is None or asked.plan is None:
        return None
    if answer.fit_probability >= min_fit_probability and answer.host_memory_fits:
        return None
    stated = practice(_PRACTICES[plan.library], plan.library)
    return Pitfall(
        id=DOWNSIZING,
        severity="warning",
        text=(
            f"Check the memory again before you shrink the cluster: on {plural(half.nodes, 'node')} ({half.gpus} GPUs)"
            f" {_spread(plan, asked.plan, cluster, half)}, and the plan needs {gib(answer.needed_gib)} a GPU"
            f" instead of {gib(now.needed_gib)}; it then {fit(answer, min_fit_probability)}."
        ),
        source_url=stated.source_url,
        source_title=stated.source_title,
    )


def _spread(plan: Plan, smaller: Plan, cluster: Cluster, half: Cluster) -> str:
    """What is divided over how many GPUs before and after."""
    if plan.library != "smp-v1":
        before, after = shard_degree(plan, cluster), shard_degree(smaller, half)
        return f"parameters, gradients and optimizer state are sharded over {after} instead of {before} GPUs"
    if plan.sharded_data_parallel_degree > 1:
        return (
            f"parameters, gradients and optimizer state are sharded over {smaller.sharded_data_parallel_degree} instead"
            f" of {plan.sharded_data_parallel_degree} GPUs"
        )
    per_replica = plan.pipeline_parallel_degree * plan.tensor_parallel_degree
    return (
        f"the optimizer state is sharded over {plural(half.gpus // per_replica, 'replica')} instead of"
        f" {cluster.gpus // per_replica}"
    )
