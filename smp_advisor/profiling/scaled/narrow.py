"""Narrower copies of a live module: constructed by its class with smaller arguments, or with renamed dimensions."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from smp_advisor.errors import AdvisorError
from smp_advisor.profiling.inputs import example_inputs
from smp_advisor.profiling.scaled.result import Reduction
from smp_advisor.profiling.structure import dimensions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smp_advisor.profiling.structure import Dimensions

__all__ = ["Renaming", "head_counts", "narrow_copy", "renamed", "runs"]

_DIVISORS = (2, 4, 8, 16)
_CHANNELS = 16
"""Channels of convolutional networks are multiples of this, and remain ones of the groups of normalization."""
_FIXED = (
    "image_size",
    "img_size",
    "resolution",
    "seq_len",
    "length",
    "positions",
    "kernel",
    "dilation",
    "stride",
    "padding",
    "padded",
)
"""Parts of names of attributes that are no widths."""
_LEAST_HEADS = 2
"""With a single head, kernels and views differ."""
_VOCABULARY = 2048
_MOST_ATTRIBUTE = 2**31
_FAST = 25_000_000
"""Parameters of a copy whose steps take seconds."""


@dataclass(frozen=True, kw_only=True)
class Narrowed:
    """A narrower module and its reduced dimensions."""

    model: nn.Module
    reductions: tuple[Reduction, ...]


def narrow_copy(model: nn.Module, most_parameters: int, inputs: Any = None) -> Narrowed | None:
    """The widest copy that trains fast and runs, or else that fits; None if no consistent one is found.

    The hidden size and its multiples in parameters, buffers and integer attributes are divided, heads are divided by
    the same number so that their width remains, and other dimensions remain. If that is not consistent, as in
    convolutional networks, all multiples of 16 times the divisor are divided. Whether the result is consistent shows in
    a forward pass on fake tensors with inferred inputs.

    Parameters
    ----------
    model
        A module, which is not modified.
    most_parameters
        Maximum parameters of the copy.
    inputs
        Example inputs; None infers them.
    """
    if any(p.device.type not in {"cpu", "meta"} for p in model.parameters()):
        return None
    size = dimensions(model)
    heads = head_counts(model)
    vocabulary = [Reduction("vocabulary", size.vocab, _VOCABULARY)] if size.vocab > _VOCABULARY else []
    for plan in _plans(model, size, heads, most_parameters):
        narrow = renamed(model, plan)
        if not runs(narrow, inputs):
            continue
        name = "hidden size" if plan.heads else "channels"
        widest = size.hidden if plan.heads else _widest(model)
        reductions = [Reduction(name, widest, plan(widest))]
        reductions += [Reduction("heads", value, value // plan.divisor) for value in heads if plan.heads]
        return Narrowed(model=narrow, reductions=(*reductions, *vocabulary))
    return None


def _plans(model: nn.Module, size: Dimensions, heads: Sequence[int], most_parameters: int) -> list[Renaming]:
    """Smaller sizes to try: the widest copy that trains fast, then narrower and wider ones."""
    plans: dict[Renaming, int] = {}
    for divisor in _DIVISORS:
        for multiple in dict.fromkeys((size.hidden, _CHANNELS * divisor)):
            by_heads = multiple == size.hidden
            if not multiple or multiple % divisor:
                continue
            if by_heads and any(value % divisor or value // divisor < _LEAST_HEADS for value in heads):
                continue
            plan = Renaming(multiple, divisor, vocabulary=size.vocab, heads=by_heads)
            count = sum(math.prod(map(plan, p.shape)) for p in model.parameters())
            if count <= most_parameters:
                plans[plan] = count
    fast = [plan for plan, count in plans.items() if count <= _FAST]
    return [*fast, *(plan for plan in reversed(plans) if plan not in fast)]


@dataclass(frozen=True, slots=True)
class Renaming:
    """Smaller sizes for the multiples of a number, and for the vocabulary; other sizes remain."""

    multiple: int
    divisor: int
    vocabulary: int
    heads: bool
    """Whether heads are divided, too; otherwise their width is."""
    over: int = 1
    """Divided sizes are multiplied by this."""
    vocabulary_size: int = _VOCABULARY

    def __call__(self, value: int) -> int:
        """The new size for a size."""
        if self.vocabulary and value == self.vocabulary:
            return min(value, self.vocabulary_size)
        return value // self.divisor * self.over if value and value % self.multiple == 0 else value


def head_counts(model: nn.Module) -> list[int]:
    """Distinct numbers of heads in the attributes of the model's modules."""
    return sorted({value for module in model.modules() for value in _attributes(module, _counts_heads)})


def _widest(model: nn.Module) -> int:
    """Most channels of a layer of the model."""
    return max((p.shape[0] for p in model.parameters() if p.ndim > 1), default=0)


def _attributes(module: nn.Module, select: Callable[[str, object], bool]) -> list[int]:
    return [value for name, value in vars(module).items() if select(name, value)]


def _counts_heads(name: str, value: object) -> bool:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 1 < value < 1024
    return is_count and "head" in name and not any(part in name for part in ("dim", "size", "width"))


def renamed(model: nn.Module, plan: Renaming) -> nn.Module:
    """Copy of the module with the renamed dimensions; parameters and buffers are cut to their new shapes."""
    tensors: dict[int, Tensor] = {}
    for module in model.modules():
        for tensor in [*module._parameters.values(), *module._buffers.values(), *vars(module).values()]:
            if isinstance(tensor, Tensor) and id(tensor) not in tensors:
                tensors[id(tensor)] = _cut(tensor, plan)
    narrow: nn.Module = copy.deepcopy(model, dict(tensors))
    for module in narrow.modules():
        for name, value in list(vars(module).items()):
            if _counts_heads(name, value):
                vars(module)[name] = value // plan.divisor * plan.over if plan.heads else value
            elif any(part in name for part in _FIXED):
                continue
            elif isinstance(value, tuple) and value and all(type(part) is int for part in value):
                vars(module)[name] = tuple(plan(part) if part else part for part in value)
            elif type(value) is int and 0 < value < _MOST_ATTRIBUTE:
                vars(module)[name] = plan(value)
    return narrow


def _cut(tensor: Tensor, renamed: Callable[[int], int]) -> Tensor:
    shape = [renamed(size) if size else size for size in tensor.shape]
    if tensor.is_meta:
        values = torch.empty(shape, dtype=tensor.dtype)
        if tensor.is_floating_point():
            values = nn.init.normal_(values, std=0.02) if len(shape) > 1 else values.fill_(1)
        else:
            values.zero_()
    else:
        values = tensor.detach()[tuple(slice(size) for size in shape)].clone()
    return nn.Parameter(values, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else values


def runs(model: nn.Module, inputs: Any = None) -> bool:
    """Whether the forward pass accepts the inputs, or inferred ones."""
    from smp_advisor.profiling.scaled.trial import accepts

    try:
        return accepts(model, example_inputs(model, inputs))
    except (AdvisorError, RuntimeError, ValueError, TypeError, IndexError):
        return False
