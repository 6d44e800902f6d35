"""Keywords of plans, for editors and type checkers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from smp_advisor.libraries.plan import Checkpointing
    from smp_advisor.workload.job import Precision

__all__ = ["PlanSettings"]


class PlanSettings(TypedDict, total=False):
    """Fields of the plans of all libraries except ``library``; a plan takes those of its own library."""

    version: str
    pipeline_parallel_degree: int
    tensor_parallel_degree: int
    sharded_data_parallel_degree: int
    shard_optimizer_state: bool
    microbatches: int
    active_microbatches: int | None
    pipeline: Literal["interleaved", "simple"]
    optimize: Literal["speed", "memory"]
    placement_strategy: str
    prescaled_batch: bool
    fp16: bool
    bf16: bool
    ddp: bool | None
    offload_activations: bool
    activation_loading_horizon: int | None
    auto_partition: bool
    default_partition: int | None
    delayed_parameter_initialization: bool
    skip_tracing: bool
    memory_weight: float | None
    ddp_dist_backend: str | None
    sdp_reduce_bucket_size: int | None
    sdp_param_persistence_threshold: int | None
    sdp_max_live_parameters: int | None
    sdp_hierarchical_allgather: bool | None
    sdp_gradient_clipping: float | None
    tensor_parallel_seed: int | None
    batch_size: int
    activation_checkpointing: Checkpointing
    partitions: int
    horovod: bool
    contiguous: bool
    precision: Precision
    hybrid_shard_degree: int
    context_parallel_degree: int
    expert_parallel_degree: int
    sm_activation_offloading: bool | None
    fsdp_cache_flush_warnings: bool | None
    allow_empty_shards: bool | None
    random_seed: int | None
    gradient_accumulation_steps: int
    fp8: bool
    sharding_strategy: Literal["full_shard", "shard_grad_op", "hybrid_shard", "_hybrid_shard_zero2"]
    distributed_backend: Literal["nccl", "smddp"]
    enabled: bool
    debug: bool
