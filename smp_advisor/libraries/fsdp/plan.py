"""Plans of PyTorch's FullyShardedDataParallel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from smp_advisor.libraries.plan import Checkpointing, Plan

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.workload.job import Precision

__all__ = ["FsdpPlan"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FsdpPlan(Plan):
    """A configuration of PyTorch's FullyShardedDataParallel. The version is PyTorch's."""

    SCRIPT_SETTINGS = (
        "batch_size",
        "gradient_accumulation_steps",
        "precision",
        "activation_checkpointing",
        "sharding_strategy",
    )

    library: str = "fsdp"
    version: str = "2.8.0"
    batch_size: int = 1
    """Samples per GPU and forward pass."""
    gradient_accumulation_steps: int = 1
    precision: Precision = "bf16"
    activation_checkpointing: Checkpointing = False
    sharding_strategy: Literal["full_shard", "shard_grad_op", "hybrid_shard", "_hybrid_shard_zero2"] = "full_shard"

    @property
    def shards_parameters(self) -> bool:
        """Whether parameters are sharded: always."""
        return True

    def shard_degree(self, cluster: Cluster) -> int:
        """GPUs over which parameters are sharded: those of a node for hybrid strategies, else all."""
        hybrid = "hybrid" in self.sharding_strategy
        return min(cluster.gpus_per_node, cluster.gpus) if hybrid else cluster.gpus
