"""FLOP formulas of operators that PyTorch's own counter lacks, and the operators whose FLOPs remain unknown."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import flop_counter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_ATTENTIONS = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
)


@cache
def flop_formulas() -> dict[Any, Callable[..., int]]:
    """FLOP formula by operator: PyTorch's, and the missing ones (without them an MoE model counts 9x too few FLOPs).

    Attention has its own formulas because older PyTorch releases reject grouped queries, gradients of convolutions
    because PyTorch's formula counts the weight gradient as if there were one group.
    """
    aten = torch.ops.aten
    formulas: dict[Any, Callable[..., int]] = dict(flop_counter.flop_registry)
    wrap: Callable[..., Any] = flop_counter.shape_wrapper
    if hasattr(aten, "_grouped_mm"):
        formulas.setdefault(aten._grouped_mm, wrap(_grouped_product))
    formulas[aten.convolution_backward] = wrap(_convolution_backward)
    for name in _ATTENTIONS:
        if hasattr(aten, name):
            formulas[getattr(aten, name)] = wrap(_attention)
            formulas[getattr(aten, f"{name}_backward")] = wrap(_attention_backward)
    return formulas


@cache
def flop_formula(operator: Any) -> Callable[..., int] | None:
    """FLOP formula of an operator; None for operators without products, or of unknown cost."""
    registered = flop_formulas().get(operator)
    if registered is not None:
        return registered
    formula = _BY_NAME.get(str(operator))
    wrap: Callable[..., Any] = flop_counter.shape_wrapper
    return wrap(formula) if formula is not None else None


@cache
def computes_products(operator: Any, *, has_weight: bool) -> bool:
    """Whether an operator without a formula may compute products, so that its FLOPs are missing from the count."""
    name = operator._schema.name.rsplit("::", 1)[-1].lower()
    if operator.namespace in {"prim", "prims", "profiler", "c10d", "_c10d_functional"}:
        return False
    if operator.namespace != "aten":
        return has_weight or any(part in name for part in _PRODUCTS)
    returns = operator._schema.returns
    is_view = bool(returns) and all(value.alias_info is not None for value in returns)
    if torch.Tag.pointwise in operator.tags or is_view:
        return False
    is_named = any(part in name for part in _PRODUCTS)
    return is_named and not any(part in name for part in ("norm", "mkldnn_reorder", "upsample"))


_PRODUCTS = (
    "mm", "matmul", "linear", "conv", "rnn", "lstm", "gru_", "attention", "attn", "bilinear", "fft", "linalg_",
    "cdist", "selective_scan", "ssd_", "qlinear", "gemm", "einsum",
)  # fmt: skip
"""Parts of names of operators that multiply matrices, or cost as much."""


def _sparse_product(a: Sequence[int], b: Sequence[int], *_: Any, **__: Any) -> int:
    """Upper bound: as many products as with a dense left operand."""
    return 2 * a[0] * a[1] * b[-1]


def _added_product(_: Any, a: Sequence[int], b: Sequence[int], *__: Any, **___: Any) -> int:
    return 2 * a[0] * a[1] * b[-1]


def _distances(a: Sequence[int], b: Sequence[int], *_: Any, **__: Any) -> int:
    """``cdist``: a difference and a multiply-add per coordinate of each pair."""
    return 3 * prod(a) * b[-2]


def _recurrent_layer(rows: Sequence[int], inner: Sequence[int], recurrent: Sequence[int], *_: Any, **__: Any) -> int:
    """OneDNN's LSTM layer: [sequence, batch, inputs] times the gates' input weight and recurrent weight."""
    return 2 * rows[0] * rows[1] * (inner[0] * inner[1] + recurrent[0] * recurrent[1])


def _flash_attention(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any) -> int:
    """flash-attn's kernel: [batch, sequence, heads, width], without skipping masked scores."""
    return int(2 * query[0] * query[2] * query[1] * key[1] * (query[3] + value[3]))


def _flash_attention_backward(
    _: Any, query: Sequence[int], key: Sequence[int], value: Sequence[int], *__: Any, **___: Any
) -> int:
    return int(2 * query[0] * query[2] * query[1] * key[1] * (3 * query[3] + 2 * value[3]))


def _grouped_product(a: Sequence[int], b: Sequence[int], *_: Any, **__: Any) -> int:
    """Rows grouped by expert times the experts' weights, or the weight gradient, which reduces over the rows."""
    if len(a) == 2 and len(b) == 3:
        return 2 * a[0] * a[1] * b[2]
    if len(a) == 2:
        return 2 * a[0] * a[1] * b[1]
    if len(b) == 2:
        return 2 * a[1] * a[2] * b[1]
    return 2 * a[0] * a[1] * a[2] * b[2]


def _convolution_backward(gradient: Any, rows: Any, weight: Any, *settings: Any, **_: Any) -> int:
    """Return the gradients of the rows and of the weight, each with as many multiplications as the forward pass."""
    transposed, gradients_needed = settings[4], settings[7]
    positions = (rows if transposed else gradient)[2:]
    return int(2 * rows[0] * prod(positions) * prod(weight) * sum(gradients_needed[:2]))


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """Scores and their product with the values, without skipping masked scores."""
    batch, heads, rows, width = query
    return int(2 * batch * heads * rows * key[-2] * (width + value[-1]))


def _attention_backward(_: Any, query: Any, key: Any, value: Any, *__: Any, **___: Any) -> int:
    """Recomputed scores, and gradients of query, key, scores and value."""
    batch, heads, rows, width = query
    return int(2 * batch * heads * rows * key[-2] * (3 * width + 2 * value[-1]))


_BY_NAME: dict[str, Callable[..., int]] = {
    # transformers registers these for devices without grouped products in PyTorch.
    "transformers.grouped_mm_fallback": _grouped_product,
    "transformers.grouped_mm_fallback_backward": lambda a, b, *_, **__: 2 * _grouped_product(a, b),
    "aten.mv": lambda matrix, *_, **__: 2 * matrix[0] * matrix[1],
    "aten.dot": lambda a, *_, **__: 2 * a[0],
    "aten.vdot": lambda a, *_, **__: 2 * a[0],
    "aten._sparse_mm": _sparse_product,
    "aten._sparse_addmm": _added_product,
    "aten._cdist_forward": _distances,
    "aten.mkldnn_rnn_layer": _recurrent_layer,
    "aten.mkldnn_rnn_layer_backward": lambda *shapes, **keywords: 2 * _recurrent_layer(*shapes, **keywords),
    "flash_attn._flash_attn_forward": _flash_attention,
    "flash_attn._flash_attn_backward": _flash_attention_backward,
}
"""Formulas of operators that are registered only on some devices, in some releases or by other packages."""
