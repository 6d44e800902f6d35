"""Whether sharded state still fits on half of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.cluster import Cluster
from smp_advisor.costs import estimate as estimate_plan
from smp_advisor.guidance.planned_run import PlannedRun
from smp_advisor.guidance.practices import order, practice
from smp_advisor.guidance.step import Pitfall
from smp_advisor.guidance.what_if import evaluate, vary
from smp_advisor.libraries.groups import shard_degree
from smp_advisor.wording import fit, gib, plural

if TYPE_CHECKING:
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["downsizing"]

DOWNSIZING = "downsizing"
"""`Pitfall.id` of the warning."""

_SHARDING = ("optimizer_state_sharding", "sharding")
"""Practices about sharded state: source of the warning."""


def downsizing(
    model: Model,
    cluster: Cluster,
    job: Job,
    plan: Plan,
    estimate: Estimate | None = None,
    *,
    min_fit_probability: float = 0.95,
) -> Pitfall | None:
    """Warn if a plan that fits would not fit on half of the nodes, because its state is sharded over them.

    Each replica keeps its batch, so that only the sharding changes. None without sharding, on a single node, for a plan
    that does not fit, and if half of the nodes is enough.
    """
    sharded = plan.shard_optimizer_state or shard_degree(plan, cluster) > 1
    if not sharded or cluster.nodes < 2:
        return None
    current = estimate or estimate_plan(model, cluster, job, plan)
    run = PlannedRun(
        model=model, cluster=cluster, job=job, plan=plan, estimate=current, min_fit_probability=min_fit_probability
    )
    if not run.fits:
        return None
    half = Cluster(cluster.instance, cluster.nodes // 2)
    comparison = vary(run, cluster=half, keep_global_batch=False)
    alternative = evaluate(model, {"half": comparison}).get("half")
    if alternative is None or comparison.plan is None:
        return None
    if alternative.fit_probability >= min_fit_probability and alternative.host_memory_fits:
        return None
    source = next((practice(name, plan.library) for name in order(plan.library) if name in _SHARDING), None)
    return Pitfall(
        id=DOWNSIZING,
        severity="warning",
        text=(
            f"Check the memory again before you shrink the cluster. On {plural(half.nodes, 'node')} ({half.gpus} GPUs),"
            f" {_shards(plan, comparison.plan, cluster, half)}, and the plan needs {gib(alternative.needed_gib)} per"
            f" GPU (vs {gib(current.needed_gib)}). It {fit(alternative, min_fit_probability)}."
        ),
        source_url=source.source_url if source else "",
        source_title=source.source_title if source else "",
    )


def _shards(plan: Plan, smaller: Plan, cluster: Cluster, half: Cluster) -> str:
    """Sharded state before and after, as a clause."""
    before, after = shard_degree(plan, cluster), shard_degree(smaller, half)
    if before > 1:
        return f"parameters, gradients and optimizer state are sharded over {after} GPUs instead of {before}"
    per_replica = plan.pipeline_parallel_degree * plan.tensor_parallel_degree
    replicas = plural(half.gpus // per_replica, "replica")
    return f"the optimizer state is sharded over {replicas} instead of {cluster.gpus // per_replica}"
