"""The 16-bit type of a plan: bf16 where GPU and plan have it, fp16 with its reason."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from smp_advisor.errors import PlanError
from smp_advisor.libraries.plan_fields import plan_fields
from smp_advisor.libraries.registry import get_library

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.plan import Plan

__all__ = ["allows_bf16", "fp16_reason"]


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
