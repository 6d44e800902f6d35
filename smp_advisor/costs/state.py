"""Memory that does not depend on the batch: parameters, gradients, optimizer state."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from smp_advisor.elementwise import maximum, where

if TYPE_CHECKING:
    from smp_advisor.costs.partition import Stage
    from smp_advisor.costs.world import World
    from smp_advisor.elementwise import Floats
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.workload.model import Model


__all__ = [
    "LocalParameters",
    "local_parameters",
    "offloaded_state_bytes",
    "owned_parameters",
    "paged_state_bytes",
    "state_bytes",
    "trained_parameters",
    "vocabulary_shards",
]


def vocabulary_shards(model: Model, layout: Layout) -> Floats:
    """Number of GPUs that share embedding, head and logits, shape (n,).

    This is the tensor-parallel degree if it divides the vocabulary, else 1: tensor parallelism skips modules whose
    sizes it does not divide. The division of the head is not documented; `memory_error_bytes` includes this doubt.
    """
    vocabulary = max(model.shape.vocab, 1)
    degree = layout.tensor_parallel_degree
    divides = (vocabulary % degree == 0) & (model.head.per_token)
    return where(divides, degree, 1.0)


@dataclass(frozen=True)
class LocalParameters:
    """Parameters on one GPU of a stage before any sharding, shape (n,) each."""

    split: Floats
    """Parameters divided by tensor parallelism."""
    replicated: Floats
    """Parameters replicated on every GPU of the tensor-parallel group."""
    experts: Floats
    """Parameters of a mixture of experts, divided by expert and tensor parallelism. Not part of the other fields."""
    root: Floats
    """Parameters outside the blocks: embedding, final norm and head. Included in `split` and `replicated`."""
    adapters: Floats
    """Parameters of an adapter, divided like the product they adapt. Not part of the other fields."""

    @property
    def total(self) -> Floats:
        """All parameters without those of an adapter."""
        return self.split + self.replicated + self.experts


def local_parameters(model: Model, layout: Layout, stage: Stage) -> LocalParameters:
    """Parameters on one GPU of a stage.

    A tied embedding is counted on the first and on the last stage. The library keeps both modules on one partition, and
    its documentation does not specify which.
    """
    tp = layout.tensor_parallel_degree
    shards = vocabulary_shards(model, layout)
    counts = _stage_parameters(model, stage)
    divided = counts.vocabulary / shards
    return LocalParameters(
        split=counts.split / tp + where(shards > 1, divided, 0.0),
        replicated=counts.replicated + where(shards > 1, 0.0, divided),
        experts=counts.experts / (tp * layout.expert_parallel_degree),
        root=counts.outside + divided,
        adapters=counts.adapters / tp,
    )


class _StageParameters(NamedTuple):
    """Parameters of a stage, before any division."""

    split: float
    replicated: float
    experts: float
    adapters: float
    vocabulary: int
    """Embedding and head, which tensor parallelism may divide."""
    outside: int
    """Other parameters outside the blocks, part of `replicated`."""


@lru_cache(maxsize=4096)
def _stage_parameters(model: Model, stage: Stage) -> _StageParameters:
    blocks = [(group.block, count) for group, count in zip(model.groups, stage.block_counts, strict=True)]
    experts = float(sum(block.expert_parameters * count for block, count in blocks))
    vocabulary = outside = 0
    if stage.first:
        vocabulary += model.token_embedding_parameters
        outside += model.embedding_parameters - model.token_embedding_parameters
    if stage.last:
        outside += model.final_parameters
        if model.head.tied:
            outside += model.head.parameters
            vocabulary += 0 if stage.first else model.token_embedding_parameters
        else:
            vocabulary += model.head.parameters
    return _StageParameters(
        split=sum(block.split_parameters * count for block, count in blocks) - experts,
        replicated=float(sum(block.replicated_parameters * count for block, count in blocks) + outside),
        experts=experts,
        adapters=float(sum(block.adapter_parameters * count for block, count in blocks)),
        vocabulary=vocabulary,
        outside=outside,
    )


def trained_parameters(local: LocalParameters, layout: Layout) -> LocalParameters:
    """Parameters with gradients: all, or only those of an adapter."""
    if layout.state_bytes.frozen_bytes is None:
        return local
    nothing = 0.0
    return LocalParameters(split=local.adapters, replicated=nothing, experts=nothing, root=nothing, adapters=nothing)


def _frozen_bytes(local: LocalParameters, layout: Layout, world: World) -> Floats:
    """Bytes of frozen parameters: the blocks' products in their own type, the others in the compute type."""
    state_bytes = layout.state_bytes
    if state_bytes.frozen_bytes is None:
        return 0.0
    # Norms and biases, a thousandth of a block, are counted as products.
    total = state_bytes.frozen_bytes * (local.total - local.root) + state_bytes.compute_bytes * local.root
    return where(layout.shard_level >= 3, total / world.shards, total)


def _expert_shards(layout: Layout, world: World) -> Floats:
    """Shards of an expert's state. Expert parallelism already divides the experts over part of the group."""
    within = maximum(world.shards / layout.expert_parallel_degree, 1)
    return where(layout.shard_level > 0, where(layout.experts_beside_shards, world.shards, within), 1.0)


def owned_parameters(local: LocalParameters, layout: Layout, world: World) -> Floats:
    """Parameters with optimizer state on one GPU, shape (n,).

    Dividing the modules that tensor parallelism replicates over the full data-parallel group is possible but not
    documented, so it is not assumed.
    """
    trained = trained_parameters(local, layout)
    return (trained.split + trained.replicated) / world.shards + trained.experts / _expert_shards(layout, world)


def state_bytes(local: LocalParameters, layout: Layout, world: World) -> dict[str, Floats]:
    """Parameters, gradients, optimizer state and fp32 copies, bytes by category, shape (n,) each."""
    state_bytes, level = layout.state_bytes, layout.shard_level
    owned = owned_parameters(local, layout, world)
    trained = trained_parameters(local, layout).total
    on_gpu = where(layout.offload_state, 0.0, owned)
    frozen = where(layout.offload_state, 0.0, _frozen_bytes(local, layout, world))
    undivided = state_bytes.extra_gradient_bytes * trained + state_bytes.frozen_gradient_bytes * local.total
    undivided = undivided + _unsharded_gradient_bytes(local, trained, layout)
    return {
        "parameters": frozen
        + state_bytes.parameter_bytes * where(level >= 3, on_gpu, trained)
        + state_bytes.cast_bytes * trained,
        "gradients": state_bytes.gradient_bytes * where(level >= 2, on_gpu, trained) + undivided,
        "optimizer_state": state_bytes.moment_bytes * on_gpu,
        "fp32_copies": (state_bytes.copy_bytes - where(level >= 3, state_bytes.late_copy_bytes, 0.0)) * on_gpu,
    }


def _unsharded_gradient_bytes(local: LocalParameters, trained: Floats, layout: Layout) -> Floats:
    """Gradients that stay unsharded while batches are accumulated, bytes.

    Source: PyTorch, ``FullyShardedDataParallel.no_sync``. A flat parameter that an adapter shares with frozen weights
    has a gradient for all of them (Lightning-AI/litgpt issue 1417).
    """
    if not layout.state_bytes.accumulates_unsharded:
        return 0.0
    parameters = trained if layout.state_bytes.frozen_bytes is None else trained + local.total
    accumulating = (layout.shard_level >= 3) & (layout.microbatches > 1)
    return where(accumulating, layout.state_bytes.compute_bytes * parameters, 0.0)


def paged_state_bytes(local: LocalParameters, layout: Layout, world: World) -> Floats:
    """Optimizer state of one GPU in pageable host memory, bytes."""
    return layout.state_bytes.paged_moment_bytes * owned_parameters(local, layout, world)


def offloaded_state_bytes(local: LocalParameters, layout: Layout, world: World) -> Floats:
    """Bytes per GPU that `Layout.offload_state` moves to the host: its shard of parameters, gradients and moments."""
    owned = owned_parameters(local, layout, world)
    return where(
        layout.offload_state, layout.state_bytes.total_bytes * owned + _frozen_bytes(local, layout, world), 0.0
    )
