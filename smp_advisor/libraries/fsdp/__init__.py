"""PyTorch's FullyShardedDataParallel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from smp_advisor.core.elementwise import anywhere, is_in, where
from smp_advisor.libraries.layout import EVERYTHING, Layout, checkpoint_columns
from smp_advisor.libraries.library import SHARDED_SETTINGS, Library
from smp_advisor.libraries.plan import Checkpointing, Plan
from smp_advisor.libraries.sharding import STRATEGIES
from smp_advisor.libraries.space import replica_space
from smp_advisor.libraries.state_bytes import fully_sharded, trained

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.core.elementwise import Floats
    from smp_advisor.libraries.layout import PlanColumns
    from smp_advisor.libraries.space import Space
    from smp_advisor.libraries.state_bytes import StateBytes
    from smp_advisor.workload.job import Job, Precision
    from smp_advisor.workload.model import Model


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class FsdpPlan(Plan):
    """A configuration of PyTorch's FullyShardedDataParallel. The version is PyTorch's."""

    library: str = "fsdp"
    version: str = "2.13.0"
    batch_size: int = 1
    """Samples per GPU and forward pass."""
    gradient_accumulation_steps: int = 1
    precision: Precision = "bf16"
    activation_checkpointing: Checkpointing = False
    sharding_strategy: Literal["full_shard", "shard_grad_op", "hybrid_shard", "_hybrid_shard_zero2"] = "full_shard"

    @property
    def shards_parameters(self) -> bool:
        return True

    def shard_degree(self, cluster: Cluster) -> int:
        """Return the GPUs over which parameters are sharded: those of a node for hybrid strategies, else all."""
        hybrid = "hybrid" in self.sharding_strategy
        return min(cluster.gpus_per_node, cluster.gpus) if hybrid else cluster.gpus


_HYBRID, _KEEPING = (
    [STRATEGIES.index(name) for name in names]
    for names in (("hybrid_shard", "_hybrid_shard_zero2"), ("shard_grad_op", "_hybrid_shard_zero2"))
)

_PREFETCHED_UNITS = 2
"""Gathered blocks of FSDP: the running one and the next (``limit_all_gathers``, backward prefetch)."""


def prefetched_units(plans: PlanColumns) -> Floats:
    """Return the blocks gathered at a time; 0 if the strategy keeps all gathered blocks until the backward pass."""
    return where(is_in(plans["sharding_strategy"], _KEEPING), 0, _PREFETCHED_UNITS)


def _adapter_units(job: Job, state: StateBytes) -> StateBytes:
    """Return the state with the units of adapters, as in Hugging Face's Trainer with PEFT (FSDP1).

    Such runs hold about twice the checkpointed inputs of the same runs on one GPU, 7B to 70B, in 16 bits and quantized
    (fms-acceleration, refs/a100_80gb.csv of August 2024); the cause is not known. In the exported script
    (``fully_shard``) adapters belong to the units of their blocks, as in torchtune. Its quantized form was not measured
    on GPUs, and is counted with twice the inputs, too.
    """
    if job.adapter is None or job.separate_embeddings or job.unsharded_accumulation:
        return state
    own_code = job.stack != "auto"
    return replace(state, adapter_units=own_code, doubled_inputs=own_code or job.adapter.quantized)


def _as_exported(job: Job, state: StateBytes) -> StateBytes:
    """Return the state with the way in which the exported script loads the model."""
    if job.stack != "auto":
        return state
    bits = 16 if job.adapter is None else job.adapter.base_bits
    # It shards no base of 8 bits.
    return replace(state, loaded_entirely=bits == 4, loaded_copies="first" if bits == 16 else "")


@lru_cache(maxsize=256)
def _state_bytes(job: Job) -> StateBytes:
    return _as_exported(job, _adapter_units(job, trained(fully_sharded(job), job)))


def layout(plans: PlanColumns, job: Job, cluster: Cluster | None = None) -> Layout:
    """Return the columns of the cost model for columns of plans. Hybrid strategies shard within a node."""
    hybrid = is_in(plans["sharding_strategy"], _HYBRID)
    if cluster is None and anywhere(hybrid):
        raise ValueError("FSDP's hybrid strategies shard within a node: pass the cluster")
    node, gpus = (0, 0) if cluster is None else (min(cluster.gpus_per_node, cluster.gpus), cluster.gpus)
    return Layout.of_columns(
        _state_bytes(job),
        rows=plans.rows,
        shard_level=3,
        shard_degree=where(hybrid, node, gpus),
        prefetched_units=prefetched_units(plans),
        # The exported script reduces between nodes once per update (``set_requires_all_reduce``).
        replicas_reduced_once=hybrid & (job.stack == "auto"),
        max_live_parameters=EVERYTHING,
        batch_samples=plans["batch_size"] * plans["gradient_accumulation_steps"],
        microbatches=plans["gradient_accumulation_steps"],
        **checkpoint_columns(plans["activation_checkpointing"]),
    )


def _space(model: Model, cluster: Cluster, job: Job, pins: Mapping[str, Any]) -> Space:
    # Within one node the hybrid strategies equal the first two.
    strategies = STRATEGIES if cluster.nodes > 1 else STRATEGIES[:2]
    return replica_space("fsdp", model, cluster, job, pins, strategies)


LIBRARY = Library(
    name="fsdp",
    package=__name__,
    plan=FsdpPlan,
    layout=layout,
    space=_space,
    trainer_argument="fsdp",
    adapters=True,
    optimizers=("adam", "adam-8bit", "sgd", "plain-sgd"),
    adapter_bases=frozenset({16, 4}),  # 4 bits by TRL's trainer, in values of bfloat16
    training_settings=SHARDED_SETTINGS,
    controls=("sharding_strategy", "activation_checkpointing", "batch_size", "gradient_accumulation_steps"),
    alternatives=("sharding_strategy", "activation_checkpointing", "gradient_accumulation_steps"),
)
