"""Layouts of plans for the cost model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.libraries.columns import PlanColumns
from smp_advisor.libraries.registry import DEFAULT_LIBRARY, get_library

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job

__all__ = ["layout_of", "layout_of_plan"]


def layout_of_plan(plan: Plan, job: Job, cluster: Cluster | None = None) -> Layout:
    """Numbers of one plan, where `layout_of` has columns."""
    return get_library(plan.library).layout_of(PlanColumns.of_plan(plan), job, cluster)


def layout_of(plans: Sequence[Plan], job: Job, cluster: Cluster | None = None) -> Layout:
    """Columns of some plans, all of one library.

    Parameters
    ----------
    cluster
        Cluster of the plans. FSDP's hybrid strategies, which shard within a node, require it.
    """
    names = {plan.library for plan in plans} or {DEFAULT_LIBRARY}
    if len(names) > 1:
        raise ValueError(f"a layout cannot contain plans of different libraries: {', '.join(sorted(names))}")
    return get_library(names.pop()).layout_of(PlanColumns.of_plans(plans), job, cluster)
