"""Recurrences of sequence models in a trace on fake tensors, with the arithmetic and traffic of their kernels.

Without packages of their own, transformers runs a reference path: a loop over the tokens, or chunks with every product
stored. On a GPU, one kernel reads the operands and writes the output. Values do not matter on fake tensors.

Sources: Gu and Dao 2023 (arXiv 2312.00752, section 3.3) and Dao and Gu 2024 (arXiv 2405.21060, section 6) for the
selective state space; Yang et al. 2024 (arXiv 2412.06464, section 3.3) for the gated delta rule.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from smp_advisor.profiling.patching import patched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_MODELS = "transformers.models."


@contextlib.contextmanager
def scan_kernels() -> Iterator[None]:
    """Run the recurrences of loaded models of transformers on fake tensors as one kernel each."""
    with contextlib.ExitStack() as stack:
        for module in [sys.modules[name] for name in [*sys.modules] if name.startswith(_MODELS)]:
            for name, replacement in _REPLACEMENTS.items():
                original = vars(module).get(name)
                if original is not None:
                    stack.enter_context(patched(module, name, replacement(original)))
        yield


def _on_fake(tensor: Tensor) -> bool:
    return isinstance(tensor, torch._subclasses.FakeTensor) or tensor.is_meta


def _tensors(*values: Any) -> Iterator[Tensor]:
    return (value for value in values if isinstance(value, Tensor))


def _selective_scan(original: Callable[..., Any]) -> Callable[..., Any]:
    """Mamba's scan: elementwise in the operands [batch, width, sequence], whose states stay in the kernel."""

    def run(values: Tensor, dt: Tensor, *arguments: Any, **options: Any) -> Any:
        if not _on_fake(values):
            return original(values, dt, *arguments, **options)
        output = _Kernel.apply(values, 0, *_tensors(dt, *arguments, *options.values()))  # type: ignore[no-untyped-call]
        return (output, None) if options.get("return_last_state") else output

    return run


def _chunk_scan(original: Callable[..., Any]) -> Callable[..., Any]:
    """Mamba 2's scan of values [batch, sequence, heads, width], in chunks.

    Products per token: of B and C with the chunk in each group; per head with the chunk's values, and twice with the
    state.
    """

    def run(values: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, chunk_size: int, **options: Any) -> Any:
        if not _on_fake(values):
            return original(values, dt, a, b, c, chunk_size, **options)
        heads, width = values.shape[-2:]
        groups, state = b.shape[-2:]
        products = chunk_size * (groups * state + heads * width) + 2 * heads * width * state
        output = _Kernel.apply(values, products, *_tensors(dt, a, b, c, *options.values()))  # type: ignore[no-untyped-call]
        return (output, None) if options.get("return_final_states") else output

    return run


def _delta_rule(original: Callable[..., Any]) -> Callable[..., Any]:
    """The gated delta rule, in chunks: queries and keys [batch, sequence, heads, width], and values.

    Products per token and head: four with the keys of the chunk, one with the inverse of its triangular system, two
    with its values, and three with the state.
    """

    def run(query: Tensor, key: Tensor, value: Tensor, *arguments: Any, chunk_size: int = 64, **options: Any) -> Any:
        if not _on_fake(query):
            return original(query, key, value, *arguments, chunk_size=chunk_size, **options)
        heads, wide = value.shape[-2:]
        products = heads * (chunk_size * (3 * key.shape[-1] + 2 * wide) + 3 * key.shape[-1] * wide)
        operands = _tensors(query, key, *arguments, *options.values())
        return _Kernel.apply(value, products, *operands), None  # type: ignore[no-untyped-call]

    return run


def _linear_attention(original: Callable[..., Any]) -> Callable[..., Any]:
    """RWKV's attention of keys and values [batch, sequence, width]: elementwise, with states inside the kernel."""

    def run(decay: Tensor, first: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        if not _on_fake(key):
            return original(decay, first, key, value, **options)
        return _Kernel.apply(key, 0, decay, first, value), options.get("state")  # type: ignore[no-untyped-call]

    return run


_REPLACEMENTS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "mamba_selective_scan": _selective_scan,
    "mamba2_chunk_scan": _chunk_scan,
    "torch_chunk_gated_delta_rule": _delta_rule,
    "rwkv_linear_attention": _linear_attention,
}


class _Kernel(torch.autograd.Function):
    """One kernel: its output has the shape of its first operand, and it saves its operands."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, products: int, *operands: Tensor) -> Tensor:
        """`products` are the multiplications per token, as one product of the same arithmetic and little traffic."""
        output = values + values
        for operand in operands:
            operand + operand  # which the kernel reads
        rows = values.reshape(values.shape[0] * values.shape[1], -1)
        ctx.columns = round(products / rows.shape[1])
        if ctx.columns:
            rows @ rows.new_empty(rows.shape[1], ctx.columns)
        ctx.save_for_backward(values, *operands)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        values, *operands = ctx.saved_tensors
        first = gradients[0] + values
        if ctx.columns:
            rows = values.reshape(values.shape[0] * values.shape[1], -1)
            for _ in range(2):
                rows @ rows.new_empty(rows.shape[1], ctx.columns)
        return first, None, *(operand + operand for operand in operands)
