"""Division of a model over GPUs by PyTorch, as the exported script divides it."""

from __future__ import annotations

import contextlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    _flat_param,
    fully_shard,
)
from torch.distributed.fsdp.wrap import CustomPolicy
from torch.distributed.tensor import Shard
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from smp_advisor.libraries.layout import OPERATORS
from smp_advisor.profiling.patching import patched, wrapped_forwards
from smp_advisor.profiling.structure import callable_parts, stacks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor, nn

    from smp_advisor.profiling.traced_rank.rank import Rank

__all__ = [
    "flat_storages",
    "main_blocks",
    "mesh_of",
    "recomputed",
    "reduction",
    "repeated_layers",
    "shard",
    "shard_flat",
    "with_buckets",
]


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
        "shard_placement_fn": lambda parameter: _placed(parameter, rank.shards),
    }
    for layer in layers:
        fully_shard(layer, reshard_after_forward=not rank.keeps_gathered, **options)
    if not rank.root_stays_gathered:
        for embedding in (model.get_input_embeddings(), model.get_output_embeddings()):  # type: ignore[operator]
            fully_shard(embedding, **options)
    fully_shard(model, reshard_after_forward=False, **options)


def _placed(parameter: nn.Parameter, shards: int) -> Shard | None:
    """Division of the experts of a layer, if they are one weight, along a dimension that divides evenly."""
    if parameter.ndim > 2 and parameter.size(0) % shards:
        for dimension in range(1, parameter.ndim):
            if parameter.size(dimension) % shards == 0:
                return Shard(dimension)
    return None


def shard_flat(module: nn.Module, layers: Sequence[nn.Module], rank: Rank, mesh: DeviceMesh) -> nn.Module:
    """Shard flat parameters (FSDP1): each layer, then everything else as the root. The result replaces the module."""
    strategies = {
        (False, False): ShardingStrategy.FULL_SHARD,
        (False, True): ShardingStrategy.SHARD_GRAD_OP,
        (True, False): ShardingStrategy.HYBRID_SHARD,
        (True, True): ShardingStrategy._HYBRID_SHARD_ZERO2,
    }
    half = torch.bfloat16 if rank.half and not rank.half_parameters else None
    hybrid, chosen = rank.replicas > 1, set(layers)
    return FullyShardedDataParallel(
        module,
        auto_wrap_policy=CustomPolicy(lambda layer: layer in chosen),
        sharding_strategy=strategies[hybrid, rank.keeps_gathered],
        device_mesh=mesh["replicate", "shard"] if hybrid else mesh["shard"],
        device_id=torch.device("cpu"),
        mixed_precision=MixedPrecision(param_dtype=half, reduce_dtype=half, buffer_dtype=torch.float32),
        use_orig_params=True,
        limit_all_gathers=True,
    )


@contextlib.contextmanager
def flat_storages() -> Iterator[None]:
    """Compare the storages of flat parameters by identity and size: fake ones have no addresses."""

    def is_allocated(tensor: Tensor) -> bool:
        return tensor.untyped_storage().nbytes() > 0

    def is_shared(first: Tensor, second: Tensor) -> bool:
        return bool(first.untyped_storage()._cdata == second.untyped_storage()._cdata)

    with patched(_flat_param, "_data_ptr_allocated", is_allocated), patched(_flat_param, "_same_storage", is_shared):
        yield


@contextlib.contextmanager
def reduction(module: nn.Module, rank: Rank, *, last: bool) -> Iterator[None]:
    """Reduce the gradients of sharded parameters in the passes inside the block, or keep them for a later pass."""
    if rank.accumulates_unsharded and not last and isinstance(module, FullyShardedDataParallel):
        with module.no_sync():
            yield
        return
    if rank.accumulates_unsharded and isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(last)
    yield


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


_ATEN = torch.ops.aten
_PRODUCTS = (_ATEN.mm.default, _ATEN.addmm.default)
_ATTENTION = (
    _ATEN._scaled_dot_product_flash_attention.default,
    _ATEN._scaled_dot_product_efficient_attention.default,
)


def repeated_layers(model: nn.Module) -> tuple[str, ...]:
    """Paths of all repeated layers; of several kinds, those that transformers names as undivided."""
    paths = [part for stack in stacks(model) for path in stack.paths for part in callable_parts(model, path)]
    undivided = set(getattr(model, "_no_split_modules", None) or ())
    chosen = [path for path in paths if type(model.get_submodule(path)).__name__ in undivided]
    return tuple(path for path in chosen or paths if any(True for _ in model.get_submodule(path).parameters()))


def main_blocks(model: nn.Module) -> tuple[str, ...]:
    """Paths of the stack with the most parameters, which a pipeline divides."""
    ordered = sorted(stacks(model), key=lambda stack: stack.parameters)
    return ordered[-1].paths if ordered else ()


@contextmanager
def recomputed(model: nn.Module, paths: Sequence[str], code: int) -> Iterator[None]:
    """Recompute layers in the backward pass, by the code of the plan's strategy (`checkpoint_code`)."""
    period = -code - 1 if code < OPERATORS else 1
    keywords: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if code == OPERATORS:
        keywords["context_fn"] = _selective_contexts

    def wrap(_: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*arguments: Any, **options: Any) -> Any:
            return checkpoint(original, *arguments, **keywords, **options)

        return forward

    with wrapped_forwards(model, paths[::period] if code else (), wrap):
        yield


def _selective_contexts() -> Any:
    """Contexts that keep the output of attention and of every second product, as the exported script does."""
    counts = {False: 0, True: 0}

    def policy(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        if operator in _PRODUCTS:
            counts[context.is_recompute] += 1
            if counts[context.is_recompute] % 2:
                return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.MUST_SAVE if operator in _ATTENTION else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]
