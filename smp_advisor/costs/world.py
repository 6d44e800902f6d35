"""The figures a layout and a cluster give together: group sizes, batches, tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smp_advisor.costs.stack import stack_of
from smp_advisor.elementwise import where

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.elementwise import Floats
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model


__all__ = ["World"]


@dataclass(frozen=True, kw_only=True)
class World:
    """Groups and batches of n layouts on one cluster, arrays of shape (n,)."""

    gpus: int
    gpus_per_node: int
    replicas: Floats
    """Groups with different samples (the reduced data-parallel degree)."""
    reduction_degree: Floats
    """GPUs that reduce the gradients of divided modules: replicas times context parallelism."""
    data_parallel_degree: Floats
    """GPUs that reduce the gradients of modules that tensor parallelism replicates."""
    shards: Floats
    """GPUs that share the state that the sharding level divides; 1 at level 0."""
    microbatch_samples: Floats
    """Samples per microbatch and replica."""
    microbatch_tokens: Floats
    """Tokens per microbatch on one GPU: samples times sequence length over context parallelism."""
    global_batch_size: Floats
    sequence_length: int
    bytes_per_element: int
    usable_bytes: float
    """Memory per GPU that a process can use."""
    fp8_copy_bytes: float
    """Bytes per weight of copies in fp8."""
    tensor_stride: Floats
    """Distance in ranks between adjacent members of a tensor-parallel group."""
    pipeline_stride: Floats
    data_stride: Floats

    @classmethod
    def of(cls, model: Model, cluster: Cluster, job: Job, layout: Layout) -> World:
        """Derive the figures. Source of group sizes and placement: SMP documentation, Ranking Basics."""
        tp, pp, cp = layout.tensor_parallel_degree, layout.pipeline_parallel_degree, layout.context_parallel_degree
        dp = cluster.gpus // pp
        reduction = dp // tp
        replicas = reduction // cp
        sequence = model.sequence_length(job.sequence_length)
        samples = layout.batch_samples / layout.microbatches
        sharded = where(layout.shard_degree == 0, reduction, layout.shard_degree)
        # "cluster" is DPT: tensor parallelism varies fastest over adjacent ranks; "spread" is TPD.
        spread, outermost = layout.spread_placement, layout.pipeline_outermost
        return cls(
            gpus=cluster.gpus,
            gpus_per_node=cluster.instance.gpus,
            data_parallel_degree=dp,
            replicas=replicas,
            reduction_degree=reduction,
            shards=where(layout.shard_level == 0, 1, sharded),
            microbatch_samples=samples,
            microbatch_tokens=samples * sequence / cp,
            global_batch_size=layout.batch_samples * replicas,
            sequence_length=sequence,
            bytes_per_element=layout.state_bytes.compute_bytes,
            fp8_copy_bytes=stack_of(job, layout).divided.fp8_weight_bytes if job.fp8 else 0.0,
            usable_bytes=cluster.instance.usable_gpu_memory_gib * 2**30,
            tensor_stride=where(spread, reduction * pp, 1),
            pipeline_stride=where(spread, reduction, where(outermost, tp * reduction, tp)),
            data_stride=where(spread, 1, where(outermost, tp, tp * pp)),
        )
