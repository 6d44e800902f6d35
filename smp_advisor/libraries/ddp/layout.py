"""Layouts of DDP plans for the cost model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.libraries.layout import Layout, checkpoint_columns
from smp_advisor.libraries.state_bytes import ddp, trained

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.columns import PlanColumns
    from smp_advisor.workload.job import Job

__all__ = ["layout"]


def layout(plans: PlanColumns, job: Job, _: Cluster | None = None) -> Layout:
    """Columns of the cost model for columns of plans: autocast over fp32 parameters."""
    return Layout.of_columns(
        trained(ddp(job), job),
        rows=plans.rows,
        batch_samples=plans["batch_size"] * plans["gradient_accumulation_steps"],
        microbatches=plans["gradient_accumulation_steps"],
        **checkpoint_columns(plans["activation_checkpointing"]),
    )
