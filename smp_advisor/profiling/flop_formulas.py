"""FLOP formulas of operators that PyTorch's own counter lacks: grouped products, attention on a CPU."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import flop_counter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["flop_formula", "flop_formulas"]


_ATTENTIONS = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
)


@cache
def flop_formulas() -> dict[Any, Callable[..., int]]:
    """FLOP formula by operator: PyTorch's, and the missing ones (without them an MoE model counts 9x too few FLOPs).

    Attention has its own formulas because older PyTorch releases reject grouped queries.
    """
    aten = torch.ops.aten
    formulas: dict[Any, Callable[..., int]] = dict(flop_counter.flop_registry)
    wrap: Callable[..., Any] = flop_counter.shape_wrapper
    if hasattr(aten, "_grouped_mm"):
        formulas.setdefault(aten._grouped_mm, wrap(_grouped_product))
    for name in _ATTENTIONS:
        if hasattr(aten, name):
            formulas[getattr(aten, name)] = wrap(_attention)
            formulas[getattr(aten, f"{name}_backward")] = wrap(_attention_backward)
    return formulas


@cache
def flop_formula(operator: Any) -> Callable[..., int] | None:
    """FLOP formula of an operator; None for operators without products."""
    registered = flop_formulas().get(operator)
    if registered is not None:
        return registered
    # transformers registers these for devices without grouped products in PyTorch.
    by_name = {
        "transformers.grouped_mm_fallback": _grouped_product,
        "transformers.grouped_mm_fallback_backward": _grouped_product_backward,
    }
    formula = by_name.get(str(operator))
    wrap: Callable[..., Any] = flop_counter.shape_wrapper
    return wrap(formula) if formula is not None else None


def _grouped_product_backward(a: Sequence[int], b: Sequence[int], *_: Any, **__: Any) -> int:
    """Gradients of rows and of weights."""
    return 2 * _grouped_product(a, b)


def _grouped_product(a: Sequence[int], b: Sequence[int], *_: Any, **__: Any) -> int:
    """Rows grouped by expert times the experts' weights, or the weight gradient, which reduces over the rows."""
    if len(a) == 2 and len(b) == 3:
        return 2 * a[0] * a[1] * b[2]
    if len(a) == 2:
        return 2 * a[0] * a[1] * b[1]
    if len(b) == 2:
        return 2 * a[1] * a[2] * b[1]
    return 2 * a[0] * a[1] * a[2] * b[2]


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """Scores and their product with the values, without skipping masked scores."""
    batch, heads, rows, width = query
    return int(2 * batch * heads * rows * key[-2] * (width + value[-1]))


def _attention_backward(_: Any, query: Any, key: Any, value: Any, *__: Any, **___: Any) -> int:
    """Recomputed scores, and gradients of query, key, scores and value."""
    batch, heads, rows, width = query
    return int(2 * batch * heads * rows * key[-2] * (3 * width + 2 * value[-1]))
