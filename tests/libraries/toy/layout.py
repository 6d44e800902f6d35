"""Plans of the toy library in the neutral form of the cost model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.libraries.layout import Layout, checkpoint_columns
from smp_advisor.libraries.state_bytes import ddp, trained

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.layout import PlanColumns
    from smp_advisor.workload.job import Job

__all__ = ["layout"]


def layout(plans: PlanColumns, job: Job, _: Cluster | None = None) -> Layout:
    """Columns of the cost model for columns of plans."""
    steps = plans["gradient_accumulation_steps"]
    return Layout.of_columns(
        trained(ddp(job), job),
        rows=plans.rows,
        shard_level=1,  # the optimizer state
        shard_degree=0,  # over all data-parallel ranks
        reduce_bucket_elements=plans["bucket_mib"] * 2**20 // 4,
        batch_samples=plans["batch_size"] * steps,
        microbatches=steps,
        **checkpoint_columns(plans["activation_checkpointing"]),
    )
