"""Tensor parallelism of a transformers model: columns of one product, rows of the next, and the vocabulary."""

from __future__ import annotations

import contextlib
import copy
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from smp_advisor.profiling.rehearsal.division import divide, style_of, transformers_plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["divide_tensors", "gathering_again"]

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

    Returns
    -------
    tuple[list[str], list[str]]
        Phrases for what was done, and sentences for what PyTorch cannot do.
    """
    plan = transformers_plan(config, mesh.size())
    if not plan:
        how = divide(model, paths, mesh, config)
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
            name: style_of(f"{path}.{name}", plan) for name, m in block.named_modules() if isinstance(m, nn.Linear)
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
