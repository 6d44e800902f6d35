"""The 16-bit type of a plan: bf16 where GPU and plan have it, fp16 with its reason."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from smp_advisor.errors import PlanError
from smp_advisor.libraries.plan_fields import plan_fields
from smp_advisor.libraries.registry import get_library
from smp_advisor.search import search

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.search import Objective, SearchResult
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["allows_bf16", "fp16_reason", "search_in_bf16_if_possible"]


def allows_bf16(plan: Plan, cluster: Cluster) -> bool:
    """Whether an fp16 plan also runs in bf16, which has the range of fp32 and needs no loss scaling.

    Examples
    --------
    >>> from smp_advisor.cluster import Cluster
    >>> from smp_advisor.libraries import Plan
    >>> allows_bf16(Plan(fp16=True, sharded_data_parallel_degree=8), Cluster("ml.p4d.24xlarge"))
    True
    """
    if plan.precision != "fp16" or not cluster.instance.bf16 or "bf16" not in plan_fields(plan.library):
        return False
    try:
        replace(plan, fp16=False, bf16=True)
    except PlanError:
        return False
    return True


def fp16_reason(library: str, cluster: Cluster) -> str:
    """Why a plan of a library trains in fp16, as a phrase."""
    if not cluster.instance.bf16:
        return f"{cluster.instance.gpu_label} does not compute in bf16"
    title = get_library(library).title
    if "bf16" in plan_fields(library):
        return f"{title} trains in bf16 only with sharded data parallelism, which this plan does not use"
    return f"AWS tested {title} in fp16"


def search_in_bf16_if_possible(
    model: Model,
    cluster: Cluster,
    job: Job,
    objective: Objective,
    terms: Mapping[str, Any],
    *,
    user_settings: frozenset[str],
) -> tuple[Job, SearchResult, tuple[Job, SearchResult]]:
    """The search of a cluster, in bf16 if the preferred plan allows it; and the search whose plans it was preferred to.

    They differ where bf16 leaves out the plans of SMP v1 that require fp16. Each comes with its job.

    Parameters
    ----------
    terms
        ``library``, ``min_fit_probability`` and ``pins`` of `search`.
    user_settings
        Names of the job's settings that the user set. A precision of the user's stays.
    """
    result = search(model, cluster, job, objective=objective, **terms)
    free = "precision" not in user_settings and not {"fp16", "bf16"} & set(terms["pins"] or {})
    if free and len(result.ranked) and allows_bf16(result.best(), cluster):
        in_bf16 = replace(job, precision="bf16")
        best = search(model, cluster, in_bf16, objective=objective, **terms)
        if len(best.ranked):
            return in_bf16, best, (job, result) if best.has_best_of(result) else (in_bf16, best)
    return job, result, (job, result)
