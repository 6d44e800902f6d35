"""A narrower copy of a live module: its hidden size, heads and vocabulary renamed to smaller ones everywhere."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from smp_advisor.errors import AdvisorError
from smp_advisor.profiling.inputs import example_inputs
from smp_advisor.profiling.scaled.result import Reduction
from smp_advisor.profiling.structure import dimensions, parameter_total

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Narrowed", "narrow_copy"]

_DIVISORS = (16, 8, 4, 2)
_LEAST_HEADS = 2
"""With a single head, kernels and views differ."""
_VOCABULARY = 2048
_MOST_ATTRIBUTE = 2**31


@dataclass(frozen=True, kw_only=True)
class Narrowed:
    """A narrower module and its reduced dimensions."""

    model: nn.Module
    reductions: tuple[Reduction, ...]


def narrow_copy(model: nn.Module, most_parameters: int) -> Narrowed | None:
    """The widest copy that fits and runs; None if no consistent one is found.

    The hidden size and its multiples in parameters, buffers and integer attributes are divided, heads are divided by
    the same number so that their width remains, and other dimensions remain. Whether the result is consistent shows in
    a forward pass on fake tensors with inferred inputs.

    Parameters
    ----------
    model
        A module, which is not modified.
    most_parameters
        Maximum parameters of the copy.
    """
    size = dimensions(model)
    heads = [value for module in model.modules() for name, value in vars(module).items() if _counts_heads(name, value)]
    if not size.hidden or any(p.device.type not in {"cpu", "meta"} for p in model.parameters()):
        return None
    for divisor in reversed(_DIVISORS):
        if size.hidden % divisor or any(value % divisor or value // divisor < _LEAST_HEADS for value in heads):
            continue

        def renamed(value: int, divisor: int = divisor) -> int:
            if size.vocab and value == size.vocab:
                return min(value, _VOCABULARY)
            return value // divisor if value % size.hidden == 0 else value

        narrow = _renamed(model, renamed, divisor)
        if parameter_total([narrow]) > most_parameters or not _runs(narrow):
            continue
        reductions = [Reduction("hidden size", size.hidden, size.hidden // divisor)]
        reductions += [Reduction("heads", value, value // divisor) for value in sorted(set(heads))]
        if size.vocab > _VOCABULARY:
            reductions.append(Reduction("vocabulary", size.vocab, _VOCABULARY))
        return Narrowed(model=narrow, reductions=tuple(reductions))
    return None


def _counts_heads(name: str, value: object) -> bool:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 1 < value < 1024
    return is_count and "head" in name and not any(part in name for part in ("dim", "size", "width"))


def _renamed(model: nn.Module, renamed: Callable[[int], int], divisor: int) -> nn.Module:
    """Copy of the module with the renamed dimensions; parameters and buffers are cut to their new shapes."""
    tensors: dict[int, Tensor] = {}
    for module in model.modules():
        for tensor in [*module._parameters.values(), *module._buffers.values(), *vars(module).values()]:
            if isinstance(tensor, Tensor) and id(tensor) not in tensors:
                tensors[id(tensor)] = _cut(tensor, renamed)
    narrow: nn.Module = copy.deepcopy(model, dict(tensors))
    for module in narrow.modules():
        for name, value in list(vars(module).items()):
            if _counts_heads(name, value):
                vars(module)[name] = value // divisor
            elif isinstance(value, tuple) and value and all(type(part) is int for part in value):
                vars(module)[name] = tuple(renamed(part) if part else part for part in value)
            elif type(value) is int and 0 < value < _MOST_ATTRIBUTE:
                vars(module)[name] = renamed(value)
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


def _runs(model: nn.Module) -> bool:
    """Whether the forward pass accepts inputs of the usual forms."""
    from smp_advisor.profiling.input_trial import accepts

    try:
        return accepts(model, example_inputs(model))
    except (AdvisorError, RuntimeError, ValueError, TypeError, IndexError):
        return False
