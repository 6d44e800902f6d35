"""Plans as arrays: the neutral form in which the cost model sees a configuration."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from smp_advisor.costs.constants import constant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from smp_advisor.library.plan import Checkpointing, Plan

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

__all__ = ["CONTIGUOUS", "Layout", "checkpoint_layers", "checkpoint_strategy", "sharded_default"]

CONTIGUOUS = -1
"""`Layout.checkpoint_layers` of the strategy that makes one unit of all layers of a stage."""


def checkpoint_layers(strategy: Checkpointing) -> int:
    """Blocks per checkpointed unit of a strategy: 0 none, 1 each, N group_N, `CONTIGUOUS`."""
    if strategy is False or strategy == "none":
        return 0
    if strategy == "each":
        return 1
    if strategy == "contiguous":
        return CONTIGUOUS
    return int(str(strategy).removeprefix("group_"))


def checkpoint_strategy(layers: int) -> Checkpointing:
    """Inverse of `checkpoint_layers`."""
    if layers == 0:
        return False
    return {1: "each", CONTIGUOUS: "contiguous"}.get(layers, f"group_{layers}")


def sharded_default(name: str) -> int:
    """The library's default size for sharded data parallelism, in elements."""
    return int(constant(f"sharded_data_parallel.{name}"))


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Many configurations as columns of equal length, one entry a plan."""

    tensor_parallel_degree: Ints
    pipeline_parallel_degree: Ints
    sharded_data_parallel_degree: Ints
    """Shards of parameters, gradients and optimizer state; 1 for none."""
    shard_optimizer_state: Bools
    batch_samples: Ints
    """Samples that one tensor-parallel group (one replica) processes in a step."""
    microbatches: Ints
    active_microbatches: Ints
    simple_pipeline: Bools
    """All forward passes before the first backward pass."""
    checkpoint_layers: Ints
    """Blocks per checkpointed unit; 0 none, `CONTIGUOUS` all blocks of a stage."""
    offload_activations: Bools
    activation_loading_horizon: Ints
    split_checkpoints: Bools
    """Whether checkpointed inputs are divided over tensor parallelism (``optimize="memory"``)."""
    max_live_parameters: Ints
    """Parameters gathered at a time (``sdp_max_live_parameters``)."""
    reduce_bucket_elements: Ints
    """Gradients reduced at a time (``sdp_reduce_bucket_size``)."""
    spread_placement: Bools
    """Data-parallel neighbours first (``placement_strategy="spread"``) rather than tensor-parallel ones."""

    def __len__(self) -> int:
        return len(self.tensor_parallel_degree)

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> Layout:
        """The layouts of some rows."""
        return Layout(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    @classmethod
    def concatenate(cls, parts: Sequence[Layout]) -> Layout:
        """One layout of many."""
        return cls(**{f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)})

    @classmethod
    def of(cls, plans: Sequence[Plan]) -> Layout:
        """Columns of some plans."""

        def ints(values: list[int]) -> Ints:
            return np.asarray(values, dtype=np.int64)

        def bools(values: list[bool]) -> Bools:
            return np.asarray(values, dtype=np.bool_)

        return cls(
            tensor_parallel_degree=ints([p.tensor_parallel_degree for p in plans]),
            pipeline_parallel_degree=ints([p.pipeline_parallel_degree for p in plans]),
            sharded_data_parallel_degree=ints([p.sharded_data_parallel_degree for p in plans]),
            shard_optimizer_state=bools([p.shard_optimizer_state for p in plans]),
            # Unscaled, every rank of a tensor-parallel group brings a batch and the group processes them together.
            batch_samples=ints([p.batch_size * (1 if p.prescaled_batch else p.tensor_parallel_degree) for p in plans]),
            microbatches=ints([p.microbatches for p in plans]),
            active_microbatches=ints(
                [
                    p.active_microbatches or min(p.pipeline_parallel_degree + 2, p.microbatches)
                    if p.pipeline != "simple"
                    else p.microbatches
                    for p in plans
                ]
            ),
            simple_pipeline=bools([p.pipeline == "simple" for p in plans]),
            checkpoint_layers=ints([checkpoint_layers(p.activation_checkpointing) for p in plans]),
            offload_activations=bools([p.offload_activations for p in plans]),
            activation_loading_horizon=ints([p.activation_loading_horizon or 4 for p in plans]),
            split_checkpoints=bools([p.optimize == "memory" and p.tensor_parallel_degree > 1 for p in plans]),
            max_live_parameters=ints(
                [p.sdp_max_live_parameters or sharded_default("max_live_parameters") for p in plans]
            ),
            reduce_bucket_elements=ints(
                [p.sdp_reduce_bucket_size or sharded_default("reduce_bucket_elements") for p in plans]
            ),
            spread_placement=bools([p.placement_strategy == "spread" for p in plans]),
        )
