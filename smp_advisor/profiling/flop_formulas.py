"""FLOPs of the operators that PyTorch's own counter does not know: grouped products, attention on a CPU."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import flop_counter

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["flop_formulas"]


@cache
def flop_formulas() -> dict[Any, Callable[..., int]]:
    """Formula by operator: PyTorch's and those missing there (without them a mixture of experts counts 9x too few)."""
    aten = torch.ops.aten
    formulas: dict[Any, Callable[..., int]] = dict(flop_counter.flop_registry)
    wrap = flop_counter.shape_wrapper
    if hasattr(aten, "_grouped_mm"):
        formulas.setdefault(aten._grouped_mm, wrap(_grouped_product))
    if hasattr(aten, "_scaled_dot_product_flash_attention_for_cpu"):
        formulas.setdefault(aten._scaled_dot_product_flash_attention_for_cpu, wrap(_attention))
        formulas.setdefault(aten._scaled_dot_product_flash_attention_for_cpu_backward, wrap(_attention_backward))
    return formulas


def _grouped_product(a: Any, b: Any, *_: Any, **__: Any) -> int:
    """Rows grouped by expert times each expert's weight, or its gradient, which reduces over the rows."""
    if len(a) == 2 and len(b) == 3:
        return 2 * a[0] * a[1] * b[2]
    if len(a) == 2:
        return 2 * a[0] * a[1] * b[1]
    if len(b) == 2:
        return 2 * a[1] * a[2] * b[1]
    return 2 * a[0] * a[1] * a[2] * b[2]


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(flop_counter.sdpa_flop_count(query, key, value))


def _attention_backward(gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(flop_counter.sdpa_backward_flop_count(gradient, query, key, value))
