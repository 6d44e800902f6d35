"""Tensor parallelism of any model by PyTorch's own distributed tensors."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ParallelStyle

__all__ = ["divide"]

_STYLES: dict[str, type[ColwiseParallel | RowwiseParallel]] = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}


def divide(model: nn.Module, paths: Sequence[str], mesh: DeviceMesh, config: Any) -> str:
    """Divide the products of some blocks over a mesh; what was done, in words.

    By the plan that transformers has for the model, where it has one and the heads can be divided: columns of one
    product and rows of the next, one all-reduce for both. Otherwise each product by itself, its columns divided and its
    output gathered, which is right for any model.
    """
    plan = _own_plan(config, mesh.size())
    divided = 0
    for path in paths:
        block = model.get_submodule(path)
        names = {name: module for name, module in block.named_modules() if _is_product(module)}
        styles = {name: style for name in names if (style := _style(f"{path}.{name}", plan))}
        if plan and _divisible(names, styles, mesh.size()):
            chosen: dict[str, ParallelStyle] = {name: _STYLES[style]() for name, style in styles.items()}
            parallelize_module(block, mesh, chosen)
            divided += len(chosen)
            continue
        plan = {}
        for module in names.values():
            divided += _columns_gathered(module, mesh)
    if not divided:
        return "nothing: no product's columns can be divided"
    if plan:
        return f"{divided} products, as transformers plans it: columns of one, rows of the next"
    return f"{divided} products, each by its columns with its output gathered"


def _own_plan(config: Any, degree: int) -> dict[str, str]:
    plan = getattr(config, "base_model_tp_plan", None) or {}
    heads = [getattr(config, name, 0) for name in ("num_attention_heads", "num_key_value_heads")]
    if any(isinstance(count, int) and count % degree for count in heads):
        return {}
    return {pattern: style for pattern, style in plan.items() if style in {"colwise", "rowwise"}}


def _style(path: str, plan: dict[str, str]) -> str:
    return next((style for pattern, style in plan.items() if fnmatch.fnmatch(path, f"*{pattern}")), "")


def _divisible(names: dict[str, nn.Module], styles: dict[str, str], degree: int) -> bool:
    """Whether the plan's products are plain ones that the degree divides."""
    if not styles:
        return False
    for name, style in styles.items():
        module = names[name]
        if not isinstance(module, nn.Linear):
            return False
        if (module.out_features if style == "colwise" else module.in_features) % degree:
            return False
    return True


def _is_product(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or _is_transposed(module)


def _is_transposed(module: nn.Module) -> bool:
    """Whether it is transformers' Conv1D: a product whose weight is stored with the inputs first."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def _columns_gathered(module: nn.Module, mesh: DeviceMesh) -> bool:
    weight = module.weight
    columns = 1 if _is_transposed(module) else 0
    if not isinstance(weight, nn.Parameter) or weight.shape[columns] % mesh.size():
        return False

    def spread(_: str, module: nn.Module, mesh: DeviceMesh) -> None:
        for name, parameter in list(module.named_parameters(recurse=False)):
            place = Shard(columns if parameter.ndim > 1 else 0)
            new = nn.Parameter(distribute_tensor(parameter.detach(), mesh, [place]), parameter.requires_grad)
            module.register_parameter(name, new)

    def enter(_: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> tuple[Any, ...]:
        return (DTensor.from_local(inputs[0], mesh, [Replicate()], run_check=False), *inputs[1:])

    def leave(_: nn.Module, output: DTensor, mesh: DeviceMesh) -> Any:
        return output.redistribute(mesh, [Replicate()]).to_local()

    distribute_module(module, mesh, spread, enter, leave)  # type: ignore[arg-type]
    return True
