"""What a plan would be with one setting changed, everything else as equal as the library allows."""

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
    from smp_advisor.guidance.case import Case
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

    Key = TypeVar("Key")

__all__ = ["WhatIf", "evaluate", "vary"]


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """Another plan to compare with, or why there is none."""

    cluster: Cluster
    job: Job
    plan: Plan | None = None
    moved: tuple[str, ...] = ()
    """Other settings that had to move: "1 microbatch instead of 4"."""
    obstacle: str = ""
    """Sentence on why the library or the cluster allows no such plan; empty where `plan` is given."""

    @property
    def aside(self) -> str:
        """The moved settings in parentheses, with a space before; empty where none moved."""
        return f" (with {', '.join(self.moved)})" if self.moved else ""


def vary(case: Case, *, cluster: Cluster | None = None, hold_global_batch: bool = True, **changes: Any) -> WhatIf:
    """Change settings of the plan and move others only where the library demands it.

    The global batch stays, so that step times compare: where the number of replicas changes, the batch of each does.
    What else had to move is listed in `WhatIf.moved`.

    Parameters
    ----------
    case
        Where it starts from.
    cluster
        Another cluster.
    hold_global_batch
        Whether the global batch stays. Otherwise each replica keeps its batch, and the job's global batch is waived.
    **changes
        Fields of `Plan`.
    """
    place = cluster or case.cluster
    job = case.job if hold_global_batch else replace(case.job, global_batch_size=None)
    after = dependent_settings(
        case.plan,
        fields_of(case.plan),
        changes,
        model=case.model,
        job=job,
        cluster=place,
        global_batch_size=case.estimate.global_batch_size if hold_global_batch else None,
        cluster_before=case.cluster,
    )
    if after.obstacle:
        return WhatIf(cluster=place, job=job, obstacle=after.obstacle)
    settings, moved = completed_settings(case.plan, after.settings, place), after.moved
    if settings.get("bf16") and not settings["sharded_data_parallel_degree"] > 1:
        settings |= {"bf16": False, "fp16": True}
        job = replace(job, precision="fp16")
        moved = (*moved, "fp16, because bf16 needs sharded data parallelism")
    return _built(case, place, job, settings, moved)


def _built(case: Case, place: Cluster, job: Job, settings: dict[str, Any], moved: tuple[str, ...]) -> WhatIf:
    try:
        plan = replace(case.plan, **settings)
    except PlanError as error:
        return WhatIf(cluster=place, job=job, obstacle=str(error))
    for sentence in mismatches(plan, place, case.model, job):
        return WhatIf(cluster=place, job=job, obstacle=sentence)
    return WhatIf(cluster=place, job=job, plan=plan, moved=moved)


def evaluate(model: Model, questions: Mapping[Key, WhatIf]) -> dict[Key, Estimate]:
    """Estimates of all plans, those of one cluster and job together; a question without a plan has no answer."""
    groups: dict[tuple[Cluster, Job], list[tuple[Key, Plan]]] = defaultdict(list)
    for key, question in questions.items():
        if question.plan is not None:
            groups[question.cluster, question.job].append((key, question.plan))
    answers: dict[Key, Estimate] = {}
    for (cluster, job), asked in groups.items():
        found = estimate_many(model, cluster, job, [plan for _, plan in asked])
        answers.update(zip((key for key, _ in asked), found, strict=True))
    return answers
