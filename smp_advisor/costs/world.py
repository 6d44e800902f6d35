"""The figures a layout and a cluster give together: group sizes, batches, tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.layout import Layout
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["World"]


@dataclass(frozen=True, kw_only=True)
class World:
    """Groups and batches of n layouts on one cluster; arrays of shape (n,)."""

    gpus: int
    gpus_per_node: int
    data_parallel_degree: NDArray[np.int64]
    """World over pipeline degree: tensor parallelism runs across data-parallel ranks."""
    replicas: NDArray[np.int64]
    """Reduced data-parallel degree: groups that see different samples."""
    microbatch_samples: NDArray[np.float64]
    """Samples of one microbatch of one replica."""
    microbatch_tokens: NDArray[np.float64]
    global_batch_size: NDArray[np.int64]
    sequence_length: int
    bytes_per_element: int
    tensor_stride: NDArray[np.int64]
    """Distance in ranks between neighbours of a tensor-parallel group."""
    pipeline_stride: NDArray[np.int64]
    data_stride: NDArray[np.int64]

    @classmethod
    def of(cls, model: Model, cluster: Cluster, job: Job, layout: Layout) -> World:
        """Derive the figures; SMP documentation, Ranking Basics, for the group sizes and placement."""
        tp, pp = layout.tensor_parallel_degree, layout.pipeline_parallel_degree
        dp = cluster.gpus // pp
        rdp = dp // tp
        sequence = model.sequence_length(job.sequence_length)
        samples = layout.batch_samples / layout.microbatches
        one = np.ones_like(tp)
        # "cluster" is DPT: tensor parallelism varies fastest over neighbouring ranks; "spread" is TPD.
        spread = layout.spread_placement
        return cls(
            gpus=cluster.gpus,
            gpus_per_node=cluster.instance.gpus,
            data_parallel_degree=dp,
            replicas=rdp,
            microbatch_samples=samples,
            microbatch_tokens=samples * sequence,
            global_batch_size=layout.batch_samples * rdp,
            sequence_length=sequence,
            bytes_per_element=4 if job.precision == "fp32" else 2,
            tensor_stride=np.where(spread, rdp * pp, one),
            pipeline_stride=np.where(spread, rdp, tp),
            data_stride=np.where(spread, one, tp * pp),
        )
