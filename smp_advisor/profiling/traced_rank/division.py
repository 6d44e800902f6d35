"""Division of a model over GPUs by PyTorch, as the exported script divides it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn

    from smp_advisor.profiling.traced_rank.rank import Rank

__all__ = ["mesh_of", "reduce_at", "shard", "with_buckets"]


def mesh_of(rank: Rank) -> DeviceMesh:
    """All GPUs: pipeline stages x replicas of the shards x shards x tensor parallelism."""
    shape = (rank.stages, rank.replicas, rank.shards, rank.tensor)
    return init_device_mesh("cpu", shape, mesh_dim_names=("pipeline", "replicate", "shard", "tensor"))


def shard(model: nn.Module, layers: Sequence[nn.Module], rank: Rank, mesh: DeviceMesh) -> None:
    """Shard parameters, gradients and optimizer state (FSDP2): each layer, then everything else as the root."""
    half = torch.bfloat16 if rank.half and not rank.half_parameters else None
    options: dict[str, Any] = {
        "mesh": mesh["replicate", "shard"] if rank.replicas > 1 else mesh["shard"],
        "mp_policy": MixedPrecisionPolicy(param_dtype=half, reduce_dtype=half),
    }
    for layer in layers:
        fully_shard(layer, reshard_after_forward=not rank.keeps_gathered, **options)
    if not rank.root_stays_gathered:
        for embedding in (model.get_input_embeddings(), model.get_output_embeddings()):  # type: ignore[operator]
            fully_shard(embedding, **options)
    fully_shard(model, reshard_after_forward=False, **options)


def reduce_at(model: nn.Module, rank: Rank, *, last: bool) -> None:
    """Whether the next backward pass reduces the gradients of sharded parameters."""
    if rank.accumulates_unsharded and isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)


def with_buckets(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Store gradients in buckets that last for the run, like DistributedDataParallel (``gradient_as_bucket_view``).

    DistributedDataParallel itself reads the parameters' memory, which a trace does not have. The gradient that a
    backward pass computes exists next to its bucket until it is copied.

    Returns
    -------
    list[Tensor]
        The buckets, one per parameter. Their sizes add up to those of the library's larger ones.
    """
    buckets = []
    for parameter in parameters:
        bucket = torch.empty_like(parameter, requires_grad=False)
        buckets.append(bucket)
        parameter.register_post_accumulate_grad_hook(_move_to(bucket))  # type: ignore[no-untyped-call]
    return buckets


def _move_to(bucket: Tensor) -> Callable[[Tensor], None]:
    def hook(parameter: Tensor) -> None:
        if parameter.grad is not bucket:
            parameter.grad = bucket

    return hook
