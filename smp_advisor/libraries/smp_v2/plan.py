"""Plans of SMP v2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from smp_advisor.libraries.plan import Checkpointing, Plan

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.workload.job import Precision

__all__ = ["SmpV2Plan"]

BROKEN_OFFLOADING = "2.2.0"
"""Release notes of 2.2.0: the library's own activation offloading does not work, PyTorch's does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SmpV2Plan(Plan):
    """A configuration of SMP v2 (PyTorch FSDP)."""

    SCRIPT_SETTINGS = (
        "batch_size",
        "gradient_accumulation_steps",
        "precision",
        "fp8",
        "activation_checkpointing",
        "offload_activations",
        "sharding_strategy",
        "delayed_parameter_initialization",
        "distributed_backend",
    )

    BATCH_DEGREES = ("tensor_parallel_degree", "context_parallel_degree")

    library: str = "smp-v2"
    version: str = "2.8.0"
    hybrid_shard_degree: int = 0
    """GPUs over which parameters, gradients and optimizer state are sharded; 0 lets the library choose, see
    `shard_degree`."""
    tensor_parallel_degree: int = 1
    context_parallel_degree: int = 1
    expert_parallel_degree: int = 1
    sm_activation_offloading: bool | None = None
    """Whether the library's own offloading moves the activations, not PyTorch's; None: if it works."""
    activation_loading_horizon: int | None = None
    """None here and below: the library's default."""
    fsdp_cache_flush_warnings: bool | None = None
    allow_empty_shards: bool | None = None
    random_seed: int | None = None
    # script settings
    batch_size: int = 1
    """Samples per data-parallel rank and forward pass. The GPUs of a tensor- or context-parallel group share them."""
    gradient_accumulation_steps: int = 1
    precision: Precision = "bf16"
    fp8: bool = False
    """Whether matrix products run in fp8 (Transformer Engine), with bf16 for all else."""
    activation_checkpointing: Checkpointing = False
    offload_activations: bool = False
    sharding_strategy: Literal["hybrid_shard", "full_shard", "_hybrid_shard_zero2"] = "hybrid_shard"
    delayed_parameter_initialization: bool = False
    distributed_backend: Literal["nccl", "smddp"] = "nccl"

    def _complete(self) -> None:
        if self.sm_activation_offloading is None or self.offload_activations is False:
            own = self.offload_activations is True and self.version != BROKEN_OFFLOADING
            object.__setattr__(self, "sm_activation_offloading", own)

    def _without_effect(self) -> tuple[str, ...]:
        return () if self.offload_activations else ("activation_loading_horizon",)

    @property
    def shards_parameters(self) -> bool:
        """Whether parameters are sharded: always."""
        return True

    def shard_degree(self, cluster: Cluster) -> int:
        """GPUs over which parameters are sharded: `hybrid_shard_degree`, or for 0 all GPUs left by tensor parallelism.

        Source: parameter reference of SMP v2. With tensor parallelism, 0 means the largest possible degree; without it,
        native FSDP, here FULL_SHARD.
        """
        return self.hybrid_shard_degree or cluster.gpus // (self.tensor_parallel_degree * self.expert_parallel_degree)

    @classmethod
    def from_reading(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """Like `Plan.from_reading`; offloading, which has no effect without checkpointing, turns it on."""
        # The default of the parameter is True, without an effect: scripts with offloading set it explicitly.
        offloads = settings.get("offload_activations", settings.get("sm_activation_offloading", False))
        missing = {"offload_activations": offloads, "activation_checkpointing": "each" if offloads else False}
        return missing | settings
