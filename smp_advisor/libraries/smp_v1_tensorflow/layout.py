"""Layouts of SMP v1 plans with TensorFlow for the cost model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.elementwise import where
from smp_advisor.libraries.layout import Layout
from smp_advisor.libraries.pipeline_schedule import SIMPLE, default_active_microbatches
from smp_advisor.libraries.state_bytes import amp, trained

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.columns import PlanColumns
    from smp_advisor.workload.job import Job

__all__ = ["layout"]


def layout(plans: PlanColumns, job: Job, _: Cluster | None = None) -> Layout:
    """Columns of the cost model: a pipeline with replicas by Horovod. Half precision is Keras's mixed_float16."""
    degree, microbatches, simple = plans["partitions"], plans["microbatches"], plans["pipeline"] == SIMPLE
    return Layout.of_columns(
        trained(amp(job), job),
        rows=plans.rows,
        pipeline_parallel_degree=degree,
        batch_samples=plans["batch_size"],
        microbatches=microbatches,
        active_microbatches=where(simple, microbatches, default_active_microbatches(degree, microbatches)),
        simple_pipeline=simple,
        host_handover=True,
        spread_placement=plans["placement_strategy"] == "spread",
    )
