"""Division of a model over GPUs by PyTorch, as the exported script divides it."""

from __future__ import annotations

import contextlib
import copy
import weakref
from contextlib import contextmanager
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
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
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from smp_advisor.libraries.layout import OPERATORS
from smp_advisor.profiling.patching import patched, wrapped_forwards
from smp_advisor.profiling.rehearsal.division import divide
from smp_advisor.profiling.structure import callable_parts, stacks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.distributed.device_mesh import DeviceMesh

    from .rank import Rank

__all__ = [
    "divide_tensors", "flat_storages", "gathering_again", "main_blocks", "mesh_of", "recomputed", "reduction",
    "repeated_layers", "shard", "shard_flat", "with_buckets",
]  # fmt: skip


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


_SMALL_SHARE = 0.02
"""Share of a block's weights that libraries replicate, too, such as routers."""
_TOKENS = 1
"""Dimension of the tokens in hidden states."""


def divide_tensors(
    model: nn.Module, paths: Sequence[str], mesh: DeviceMesh, config: Any, *, sequence_parallel: bool
) -> tuple[list[str], list[str]]:
    """Divide a model over a mesh.

    With sequence parallelism, hidden states between the products are divided by tokens: the blocks' norms and residuals
    run on a part of the sequence, and attention and feed-forward gather it. Under `gathering_again`, the backward pass
    gathers it a second time.
    """
    plan = _transformers_plan(config, mesh.size())
    if not plan:
        how = divide(model, paths, mesh)
        obstacle = (
            "Tensor parallelism by columns and rows: transformers has no plan for this model, so that each product was"
            " divided by columns and its output gathered, which stores more."
        )
        return [f"tensor parallelism of {how}"], [obstacle]
    between = Shard(_TOKENS) if sequence_parallel else Replicate()
    count = 0
    for path in paths:
        block = model.get_submodule(path)
        styles = {
            name: _style_of(f"{path}.{name}", plan) for name, m in block.named_modules() if isinstance(m, nn.Linear)
        }
        for name, style in styles.items():
            if style == "rowwise":
                parallelize_module(block.get_submodule(name), mesh, RowwiseParallel(output_layouts=between))
            elif style == "colwise":
                parallelize_module(block.get_submodule(name), mesh, ColwiseParallel())
            count += bool(style)
        if sequence_parallel:
            parents = {name.rpartition(".")[0] for name, style in styles.items() if style == "colwise"}
            for name in parents:
                block.get_submodule(name).register_forward_pre_hook(_gathering(mesh), with_kwargs=True)
    phrases = [f"tensor parallelism of {count} products over {mesh.size()} GPUs: columns of one, rows of the next"]
    if sequence_parallel:
        model.get_submodule(paths[0]).register_forward_pre_hook(_dividing(mesh), with_kwargs=True)
        phrases.append("hidden states between them divided by tokens")
    if not _divide_vocabulary(model, mesh, between):
        phrases.append("embedding and head replicated: the degree does not divide the vocabulary")
    return phrases, _undivided(model, paths)


def _undivided(model: nn.Module, paths: Sequence[str]) -> list[str]:
    """A sentence if large weights of the blocks are not divided, such as those of experts."""
    weights = {
        name: parameter
        for path in paths
        for name, parameter in model.get_submodule(path).named_parameters()
        if parameter.ndim > 1
    }
    undivided = {name: weight for name, weight in weights.items() if not isinstance(weight, DTensor)}
    if sum(map(Tensor.numel, undivided.values())) <= _SMALL_SHARE * sum(map(Tensor.numel, weights.values())):
        return []
    name = max(undivided, key=lambda name: undivided[name].numel())
    return [f"Tensor parallelism of {name}: PyTorch has no form of it for this module, so that each GPU has all of it."]


def _divide_vocabulary(model: Any, mesh: DeviceMesh, between: Shard | Replicate) -> bool:
    """Divide embedding and head by the vocabulary, if the degree divides it."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    size = getattr(embedding, "num_embeddings", 1)
    if size % mesh.size() or not isinstance(head, nn.Linear):
        if isinstance(between, Shard) and isinstance(head, nn.Linear):
            head.register_forward_pre_hook(lambda _, arguments: (_gathered(arguments[0], mesh).to_local(),))
        return False
    tied = embedding.weight is head.weight
    parallelize_module(embedding, mesh, RowwiseParallel(input_layouts=Replicate()))
    if tied:
        head.weight = embedding.weight
    parallelize_module(head, mesh, ColwiseParallel(input_layouts=between))
    if tied:
        head.weight = embedding.weight
    # The loss runs on the rank's part of the vocabulary.
    model.config = copy.deepcopy(model.config)
    for owner in (model.config, model):
        if hasattr(owner, "vocab_size"):
            owner.vocab_size = size // mesh.size()
    return True


_gathered_storages: dict[int, Tensor] = {}
"""The divided tensors from which storages were gathered, by storage."""


def _gathered(hidden: Tensor, mesh: DeviceMesh) -> DTensor:
    part = DTensor.from_local(hidden, mesh, [Shard(_TOKENS)], run_check=False)
    result: DTensor = part.redistribute(mesh, [Replicate()])
    storage = result.to_local().untyped_storage()
    _gathered_storages[storage._cdata] = part.detach()
    weakref.finalize(storage, _gathered_storages.pop, storage._cdata, None)
    return result


@contextlib.contextmanager
def gathering_again() -> Iterator[None]:
    """Save the divided tokens for the backward pass, which gathers them again (Korthikanti et al. 2022, section 4.2.2).

    PyTorch's own tensor parallelism saves the gathered ones. Layers under activation checkpointing are not affected.
    """

    def pack(tensor: Tensor) -> Any:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        part = _gathered_storages.get(local.untyped_storage()._cdata)
        return tensor if part is None else (part, tensor.shape)

    def unpack(saved: Any) -> Tensor:
        if not isinstance(saved, tuple):
            return saved  # type: ignore[no-any-return]
        part, shape = saved
        return part.redistribute(part.device_mesh, [Replicate()]).view(shape)  # type: ignore[no-any-return]

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield


def _gathering(mesh: DeviceMesh) -> Any:
    """Hook that gathers the tokens of a module's input."""

    def hook(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if arguments:
            return (_gathered(arguments[0], mesh), *arguments[1:]), keywords
        return arguments, keywords | {"hidden_states": _gathered(keywords["hidden_states"], mesh)}

    return hook


def _dividing(mesh: DeviceMesh) -> Any:
    """Hook that leaves the rank's part of the tokens in the first block's input."""

    def hook(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        hidden = arguments[0] if arguments else keywords["hidden_states"]
        part = hidden.chunk(mesh.size(), _TOKENS)[mesh.get_local_rank()].contiguous()
        return ((part, *arguments[1:]), keywords) if arguments else (arguments, keywords | {"hidden_states": part})

    return hook


def _transformers_plan(config: Any, degree: int) -> dict[str, str]:
    """Styles of products by pattern of their path, from the configuration; empty if the heads are not divisible."""
    plan = getattr(config, "base_model_tp_plan", None) or {}
    heads = [getattr(config, name, 0) for name in ("num_attention_heads", "num_key_value_heads")]
    if any(isinstance(count, int) and count % degree for count in heads):
        return {}
    return {pattern: style for pattern, style in plan.items() if style in {"colwise", "rowwise"}}


def _style_of(path: str, plan: dict[str, str]) -> str:
    """Style of the product at a path: ``colwise``, ``rowwise``, or empty."""
    return next((style for pattern, style in plan.items() if fnmatch(path, f"*{pattern}")), "")
