"""Layouts of Training Compiler plans for the cost model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.libraries.layout import Layout
from smp_advisor.libraries.state_bytes import amp, trained

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.columns import PlanColumns
    from smp_advisor.workload.job import Job

__all__ = ["layout"]


def layout(plans: PlanColumns, job: Job, _: Cluster | None = None) -> Layout:
    """Columns of the cost model for columns of plans.

    The compiler decides which activations a compiled step stores. They are assumed to be those of PyTorch.
    """
    return Layout.of_columns(trained(amp(job), job), rows=plans.rows, batch_samples=plans["batch_size"])
