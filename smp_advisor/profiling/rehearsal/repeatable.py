"""Training mode without luck: dropout, random numbers and buffers that do not depend on how a batch is divided."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from smp_advisor.profiling.patching import patched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["batch_norms", "evaluated", "repeatable", "restored_buffers", "seeded"]

_MAX_PERIOD = 64


@contextlib.contextmanager
def repeatable(attention_dropouts: list[float] | None = None) -> Iterator[None]:
    """Replace dropout by one with the same mask for every sample, so that runs in training mode are comparable.

    Every 2nd, 4th, ... element of the last dimension is dropped, by the power of two closest to the dropout rate. A
    divided dimension has the same mask as the entire one if its part is a multiple of that power. The dropout of
    PyTorch's attention kernel is skipped; its rates are appended to `attention_dropouts`.
    """
    attend = F.scaled_dot_product_attention

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,  # noqa: FBT001, FBT002 (PyTorch's signature)
        **keywords: Any,
    ) -> Tensor:
        if dropout_p and attention_dropouts is not None:
            attention_dropouts.append(dropout_p)
        attended: Tensor = attend(query, key, value, attn_mask, 0.0, is_causal, **keywords)
        return attended

    def direct(tensor: Tensor, p: float, train: bool) -> Tensor:  # noqa: FBT001 (PyTorch's signature)
        return _dropout(tensor, p, train)

    with (
        patched(F, "dropout", _dropout),
        patched(torch, "dropout", direct),
        patched(F, "scaled_dot_product_attention", attention),
    ):
        yield


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:  # noqa: A002, ARG001, FBT001, FBT002 (PyTorch's signature)
    if not training or not 0 < p < 1 or not input.ndim:
        return input * 0 if training and p == 1 else input
    period = min(2 ** max(1, round(-math.log2(p))), _MAX_PERIOD)
    mask = (torch.arange(input.shape[-1], device=input.device) % period != period - 1).to(input.dtype)
    scaled: Tensor = mask * (period / (period - 1))
    return input * scaled


def seeded(model: nn.Module, paths: Sequence[str], *, offset: int = 0) -> Callable[[], None]:
    """Seed each forward pass, and each block's, so that a model's own random numbers are the same in every run.

    Returns a function that removes the seeds.
    """
    handles = [
        module.register_forward_pre_hook(_seed(offset + number))
        for number, module in enumerate([model, *(model.get_submodule(path) for path in paths)])
    ]

    def remove() -> None:
        for handle in handles:
            handle.remove()

    return remove


def _seed(number: int) -> Callable[..., None]:
    def hook(*_: Any) -> None:
        torch.manual_seed(number)

    return hook


def batch_norms(model: nn.Module) -> list[str]:
    """Paths of the layers that normalize with statistics of the batch."""
    kinds = nn.modules.batchnorm._BatchNorm
    return [name for name, module in model.named_modules() if isinstance(module, kinds) and module.training]


@contextlib.contextmanager
def evaluated(model: nn.Module, paths: Sequence[str]) -> Iterator[None]:
    """Set some modules to evaluation mode inside the block."""
    modules = [model.get_submodule(path) for path in paths]
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for module in modules:
            module.train()


@contextlib.contextmanager
def restored_buffers(model: nn.Module) -> Iterator[None]:
    """Restore the values of the model's buffers after the block."""
    saved = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in saved:
                buffer.copy_(value)
