"""Tensor parallelism of any model with PyTorch's distributed tensors."""

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

__all__ = ["divide", "style_of", "transformers_plan"]

_STYLES: dict[str, type[ColwiseParallel | RowwiseParallel]] = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}


def divide(model: nn.Module, paths: Sequence[str], mesh: DeviceMesh, config: Any) -> str:
    """Divide the matrix products of blocks over a mesh, and return a description.

    If transformers has a tensor-parallel plan for the model and the heads are divisible, that plan is used: columns of
    one product and rows of the next, with one all-reduce for both. Otherwise each product is divided by columns and its
    output is gathered, which is correct for any model.
    """
    plan = transformers_plan(config, mesh.size())
    count = 0
    for path in paths:
        block = model.get_submodule(path)
        products = {
            name: module
            for name, module in block.named_modules()
            if isinstance(module, nn.Linear) or _is_transposed(module)
        }
        styles = {name: style for name in products if (style := style_of(f"{path}.{name}", plan))}
        if plan and _divisible(products, styles, mesh.size()):
            parallel_styles: dict[str, ParallelStyle] = {name: _STYLES[style]() for name, style in styles.items()}
            parallelize_module(block, mesh, parallel_styles)
            count += len(parallel_styles)
            continue
        plan = {}
        for module in products.values():
            count += _columns_gathered(module, mesh)
    if not count:
        return "nothing: no product has divisible columns"
    if plan:
        return f"{count} products by the plan of transformers: columns of one, rows of the next"
    return f"{count} products by columns, each with its output gathered"


def transformers_plan(config: Any, degree: int) -> dict[str, str]:
    """Styles of products by pattern of their path, from the configuration; empty if the heads are not divisible."""
    plan = getattr(config, "base_model_tp_plan", None) or {}
    heads = [getattr(config, name, 0) for name in ("num_attention_heads", "num_key_value_heads")]
    if any(isinstance(count, int) and count % degree for count in heads):
        return {}
    return {pattern: style for pattern, style in plan.items() if style in {"colwise", "rowwise"}}


def style_of(path: str, plan: dict[str, str]) -> str:
    """Style of the product at a path: ``colwise``, ``rowwise``, or empty."""
    return next((style for pattern, style in plan.items() if fnmatch.fnmatch(path, f"*{pattern}")), "")


def _divisible(products: dict[str, nn.Module], styles: dict[str, str], degree: int) -> bool:
    """Whether the plan's products are linear layers that the degree divides."""
    if not styles:
        return False
    for name, style in styles.items():
        module = products[name]
        if not isinstance(module, nn.Linear):
            return False
        if (module.out_features if style == "colwise" else module.in_features) % degree:
            return False
    return True


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
