"""Division of any model with blocks: into pipeline stages, and by tensor parallelism with PyTorch's own tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.utils._pytree import tree_leaves, tree_map

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.step import loss_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.distributed.device_mesh import DeviceMesh


_HIDDEN = ("hidden_states", "x", "inputs", "input")


@dataclass(frozen=True, slots=True)
class Boundary:
    """Interface between consecutive blocks."""

    keyword: str | None
    """Name of the argument with the hidden states; None if it is the first positional argument."""
    hidden: Tensor
    """Hidden states of one microbatch, on the meta device."""
    outputs: tuple[Any, ...]
    """Structure of each block's output; leaves are "hidden" or "other"."""


class _StageEnd(BaseException):
    """Raised after a stage's last block, since the next stage runs the remaining forward pass.

    Not an `Exception`, so that models do not catch it.
    """

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden


class Stage(nn.Module):
    """The model's forward pass with the blocks of one stage only.

    The code before the blocks (embeddings, masks, position tables) runs on every stage, since blocks use some of its
    results; after the first stage, received hidden states replace its own. A weight of two stages gets both gradients.
    """

    def __init__(
        self, model: nn.Module, paths: Sequence[str], boundary: Boundary, own: range, by_name: Callable[..., Any]
    ) -> None:
        super().__init__()
        self.model = model
        self.first, self.last = own.start == 0, own.stop == len(paths)
        self._call = by_name
        self._boundary = boundary
        self._received: Tensor | None = None
        for i, path in enumerate(paths):
            block = model.get_submodule(path)
            if i < own.start:
                block.forward = self._passing(i)
            elif i == own.start and not self.first:
                block.forward = self._entering(block.forward)
            elif i == own.stop:
                block.forward = self._ending
            elif i > own.stop:
                block.forward = self._unreached

    def forward(self, *hidden: Tensor, **batch: Any) -> Tensor:
        """Hidden states for the next stage; on the last stage the loss, of shape (1,)."""
        self._received = hidden[0] if hidden else None
        try:
            output = self._call(self.model, batch)
        except _StageEnd as end:
            return end.hidden
        finally:
            self._received = None
        return loss_of(output).reshape(1)

    def _passing(self, index: int) -> Callable[..., Any]:
        """Forward method of a block of an earlier stage: returns its input."""

        def forward(*arguments: Any, **keywords: Any) -> Any:
            hidden = self._hidden(arguments, keywords)
            return tree_map(lambda kind: hidden if kind == "hidden" else None, self._boundary.outputs[index])

        return forward

    def _entering(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Forward method of the stage's first block: takes the received hidden states."""

        def forward(*arguments: Any, **keywords: Any) -> Any:
            if self._received is None:
                raise ProfileError("A pipeline stage ran without the hidden states of the stage before it.")
            if self._boundary.keyword is None:
                return original(self._received, *arguments[1:], **keywords)
            return original(*arguments, **(keywords | {self._boundary.keyword: self._received}))

        return forward

    def _ending(self, *arguments: Any, **keywords: Any) -> Any:
        raise _StageEnd(self._hidden(arguments, keywords))

    def _unreached(self, *_: Any, **__: Any) -> Any:
        raise ProfileError("A block of a later pipeline stage was called out of order.")

    def _hidden(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Tensor:
        hidden: Tensor = arguments[0] if self._boundary.keyword is None else keywords[self._boundary.keyword]
        return hidden


def ranges(blocks: int, stages: int) -> list[range]:
    """Blocks of each stage, divided evenly; earlier stages get fewer, since they have the embedding."""
    sizes = [blocks // stages + (i >= stages - blocks % stages) for i in range(stages)]
    starts = [sum(sizes[:i]) for i in range(stages)]
    return [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]


def find_boundary(model: nn.Module, paths: Sequence[str], stages: int, run: Callable[[], Any]) -> Boundary:
    """Determine the interface between blocks from one forward pass, or refuse the model in one sentence."""
    if len(paths) < stages:
        raise ProfileError("It has no sequence of blocks to divide.")
    order: list[str] = []
    inputs: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    outputs: list[Any] = []

    def record(path: str) -> Callable[..., None]:
        def hook(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> None:
            order.append(path)
            inputs.append((arguments, keywords))
            outputs.append(output)

        return hook

    handles = [model.get_submodule(path).register_forward_hook(record(path), with_kwargs=True) for path in paths]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    if order != list(paths):
        raise ProfileError(
            "Its blocks do not run in sequence, once each, so it cannot be divided into pipeline stages."
        )
    arguments, keywords = inputs[-1]
    first = bool(arguments) and isinstance(arguments[0], Tensor)
    keyword = None if first else next((name for name in _HIDDEN if isinstance(keywords.get(name), Tensor)), None)
    if keyword is None and not first:
        raise ProfileError(
            "The first argument of its blocks is no tensor, so it cannot be divided into pipeline stages."
        )
    hidden_inputs = [(arguments[0] if keyword is None else keywords[keyword]) for arguments, keywords in inputs[1:]]
    for i, (hidden, received) in enumerate(zip(hidden_inputs, inputs[1:], strict=True), 1):
        extra = [leaf for leaf in tree_leaves(received) if isinstance(leaf, Tensor) and leaf is not hidden]
        if any(leaf.requires_grad for leaf in extra):
            raise ProfileError(
                f"Block {paths[i]} has a second input with a gradient (the encoder's output, a position bias), and "
                "PyTorch's schedules pass only one tensor between stages."
            )
        if not any(leaf is hidden for leaf in tree_leaves(outputs[i - 1])):
            raise ProfileError(f"The output of {paths[i - 1]} is changed before {paths[i]} receives it.")
    kinds = [
        tree_map(lambda leaf, hidden=hidden: "hidden" if leaf is hidden else "other", output)
        for output, hidden in zip(outputs[:-1], hidden_inputs, strict=True)
    ]
    return Boundary(keyword, torch.empty_like(hidden_inputs[-1], device="meta"), tuple(kinds))


def divide(model: nn.Module, paths: Sequence[str], mesh: DeviceMesh) -> str:
    """Divide the products of blocks by columns and gather their outputs, correct for any model; the description."""
    blocks = [model.get_submodule(path) for path in paths]
    products = [
        part for block in blocks for part in block.modules() if isinstance(part, nn.Linear) or _is_transposed(part)
    ]
    count = sum(_columns_gathered(product, mesh) for product in products)
    return (
        f"{count} products by columns, each with its output gathered"
        if count
        else "nothing: no product has divisible columns"
    )


def _is_transposed(module: nn.Module) -> bool:
    """Whether the module is transformers' Conv1D, a product whose weight has the inputs as first dimension."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def _columns_gathered(module: nn.Module, mesh: DeviceMesh) -> bool:
    weight = module.weight
    columns = 1 if _is_transposed(module) else 0
    if not isinstance(weight, nn.Parameter) or weight.shape[columns] % mesh.size():
        return False

    def spread(_: str, module: nn.Module, mesh: DeviceMesh) -> None:
        for name, parameter in list(module.named_parameters(recurse=False)):
            placement = Shard(columns if parameter.ndim > 1 else 0)
            new = nn.Parameter(distribute_tensor(parameter.detach(), mesh, [placement]), parameter.requires_grad)
            module.register_parameter(name, new)

    def enter(_: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> tuple[Any, ...]:
        return (DTensor.from_local(inputs[0], mesh, [Replicate()], run_check=False), *inputs[1:])

    def leave(_: nn.Module, output: DTensor, mesh: DeviceMesh) -> Any:
        return output.redistribute(mesh, [Replicate()]).to_local()

    distribute_module(module, mesh, spread, enter, leave)  # type: ignore[arg-type]
    return True
