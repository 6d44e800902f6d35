"""An alternative plan: some settings changed, everything else as equal as the library allows."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from smp_advisor.costs import estimate_many
from smp_advisor.errors import PlanError
from smp_advisor.libraries import mismatches
from smp_advisor.libraries.dependent import completed_settings, dependent_settings, fields_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.planned_run import PlannedRun
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

    Key = TypeVar("Key")

__all__ = ["WhatIf", "evaluate", "vary"]


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """An alternative plan, or why there is none."""

    cluster: Cluster
    job: Job
    plan: Plan | None = None
    moved: tuple[str, ...] = ()
    """Other settings that had to change: "1 microbatch instead of 4"."""
    obstacle: str = ""
    """Sentence on why the library or the cluster allows no such plan; empty if there is a `plan`."""

    @property
    def aside(self) -> str:
        """The other changed settings in parentheses, after a space; empty if there are none."""
        return f" (with {', '.join(self.moved)})" if self.moved else ""


def vary(run: PlannedRun, *, cluster: Cluster | None = None, keep_global_batch: bool = True, **changes: Any) -> WhatIf:
    """Change settings of the plan, and others only if the library requires it.

    The global batch stays, so that step times compare: if the number of replicas changes, the batch of each changes.
    `WhatIf.moved` lists the other settings that had to change.

    Parameters
    ----------
    run
        The run to change.
    cluster
        Another cluster.
    keep_global_batch
        Whether the global batch stays. Otherwise each replica keeps its batch, and the job's global batch is waived.
    **changes
        Fields of `Plan`.
    """
    place = cluster or run.cluster
    job = run.job if keep_global_batch else replace(run.job, global_batch_size=None)
    after = dependent_settings(
        run.plan,
        fields_of(run.plan),
        changes,
        model=run.model,
        job=job,
        cluster=place,
        global_batch_size=run.estimate.global_batch_size if keep_global_batch else None,
        cluster_before=run.cluster,
    )
    if after.obstacle:
        return WhatIf(cluster=place, job=job, obstacle=after.obstacle)
    settings, moved = completed_settings(run.plan, after.settings, place), after.moved
    if settings.get("bf16") and not settings["sharded_data_parallel_degree"] > 1:
        settings |= {"bf16": False, "fp16": True}
        job = replace(job, precision="fp16")
        moved = (*moved, "fp16, because bf16 needs sharded data parallelism")
    try:
        plan = replace(run.plan, **settings)
    except PlanError as error:
        return WhatIf(cluster=place, job=job, obstacle=str(error))
    for sentence in mismatches(plan, place, run.model, job):
        return WhatIf(cluster=place, job=job, obstacle=sentence)
    return WhatIf(cluster=place, job=job, plan=plan, moved=moved)


def evaluate(model: Model, comparisons: Mapping[Key, WhatIf]) -> dict[Key, Estimate]:
    """Estimates of the alternative plans, those of one cluster and job together; none for a missing plan."""
    groups: dict[tuple[Cluster, Job], list[tuple[Key, Plan]]] = defaultdict(list)
    for key, comparison in comparisons.items():
        if comparison.plan is not None:
            groups[comparison.cluster, comparison.job].append((key, comparison.plan))
    results: dict[Key, Estimate] = {}
    for (cluster, job), plans in groups.items():
        estimates = estimate_many(model, cluster, job, [plan for _, plan in plans])
        results.update(zip((key for key, _ in plans), estimates, strict=True))
    return results
