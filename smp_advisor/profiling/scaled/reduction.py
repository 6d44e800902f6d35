"""Smaller modules of the same architecture, by renamed dimensions."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from smp_advisor.profiling.fake import copy_with
from smp_advisor.profiling.scaled.result import Reduction
from smp_advisor.profiling.structure import hidden_size, largest_table

if TYPE_CHECKING:
    from collections.abc import Callable

_VOCABULARY = 2048
_LEAST_HEADS = 2
"""With a single head, kernels and views differ, and so does memory."""
_EXPERTS = re.compile(r"(num|n)_(local_|routed_)?experts|moe_num_experts")
_EXPERTS_PER_TOKEN = re.compile(r"num_experts_per_tok|experts_per_token|top_k|moe_(topk|k)|num_selected_experts")
_DIVISORS = (1, 2, 4, 8, 16)
"""1 reduces the vocabulary and the experts alone."""
_CHANNELS = (16, 2)
"""Where heads cannot be divided, channels are multiples of one of these: they remain ones of the groups of
normalization, or the halves of a head that rotary positions turn."""
_FIXED = (
    "image_size", "img_size", "resolution", "seq_len", "length", "position", "kernel", "dilation", "stride", "padding",
    "padded", "token_id", "num_channels",
)  # fmt: skip
"""Parts of names of attributes that are no widths."""
_MOST_ATTRIBUTE = 2**31
_FAST = 25_000_000
"""Parameters of a copy whose steps take seconds."""


@dataclass(frozen=True, slots=True)
class _Renaming:
    """Smaller sizes for the multiples of a number, for the vocabulary and for experts; other sizes remain."""

    multiple: int
    divisor: int
    vocabulary: int
    experts: tuple[int, int]
    """Before and after; zeros without experts in one tensor."""
    heads: bool
    """Whether heads are divided, too; otherwise their width is."""

    def __call__(self, value: int) -> int:
        """Return the new size for a size."""
        if self.vocabulary and value == self.vocabulary:
            return min(value, _VOCABULARY)
        if value and value == self.experts[0]:
            return self.experts[1]
        return value // self.divisor if value and value % self.multiple == 0 else value


def narrow_copy(
    model: nn.Module, most_parameters: int, accepts: Callable[[nn.Module], bool]
) -> tuple[nn.Module, tuple[Reduction, ...]] | None:
    """The widest copy that trains fast and runs, or else that fits, and its reductions; None if none is consistent.

    The hidden size and its multiples in parameters, buffers and integer attributes, also those of configurations, are
    divided. Heads are divided by the same number so that their width remains, and other dimensions remain. If that is
    not consistent, as in convolutional networks, all multiples of 16 times the divisor are divided. Experts shrink to
    a few. Whether the result is consistent shows in a forward pass: `accepts`.
    """
    if any(p.device.type not in {"cpu", "meta"} for p in model.parameters()):
        return None
    hidden, rows = hidden_size(model), largest_table(model, nn.Embedding, nn.EmbeddingBag)
    values = [(name, value) for owner in _attributes(model) for name, value in owner.items() if type(value) is int]
    heads = sorted({value for name, value in values if _counts_heads(name, value)})
    experts = _experts(model, values)
    # Widest first: the smallest of the grouped heads has the smallest width.
    widths = [hidden * heads[0] // heads[-1], hidden] if heads else [hidden]
    plans: dict[_Renaming, int] = {}
    for divisor in _DIVISORS:
        for multiple in dict.fromkeys((*widths, *(divisor * channels for channels in _CHANNELS))):
            by_heads = multiple in widths
            if not multiple or multiple % divisor:
                continue
            if by_heads and any(value % divisor or value // divisor < _LEAST_HEADS for value in heads):
                continue
            plan = _Renaming(multiple, divisor, vocabulary=rows, experts=experts, heads=by_heads)
            count = sum(math.prod(map(plan, p.shape)) for p in model.parameters())
            if count <= most_parameters:
                plans[plan] = count
    fast = [plan for plan, count in plans.items() if count <= _FAST]
    for plan in [*fast, *(plan for plan in reversed(plans) if plan not in fast)]:
        narrow = _renamed(model, plan)
        if not accepts(narrow):
            continue
        widest = hidden if plan.heads else max(p.shape[1] for p in model.parameters() if p.ndim > 1)
        changes = [("hidden size" if plan.heads else "channels", widest, plan(widest))]
        changes += [("heads", value, value // plan.divisor) for value in heads if plan.heads]
        changes += [("vocabulary", rows, min(rows, _VOCABULARY)), ("experts", *experts)]
        return narrow, tuple(Reduction(*change) for change in changes if change[1] != change[2])
    return None


def _attributes(model: nn.Module) -> list[dict[str, Any]]:
    """Attributes of every module and of every configuration, which can be changed."""
    modules = [vars(module) for module in model.modules()]
    configurations = {id(value): vars(value) for own in modules for value in own.values() if hasattr(value, "to_dict")}
    return [*modules, *configurations.values()]


def _counts_heads(name: str, value: object) -> bool:
    return type(value) is int and 1 < value < 1024 and "head" in name and not re.search("dim|size|width", name)


def _experts(model: nn.Module, values: list[tuple[str, int]]) -> tuple[int, int]:
    """Experts whose weights are one tensor, and a smaller number: at least two for each one of a token."""
    counts = [value for name, value in values if _EXPERTS.fullmatch(name) and value > 1]
    count = next((count for count in counts if any(p.ndim > 2 and p.shape[0] == count for p in model.parameters())), 0)
    fewest = 2 * max((value for name, value in values if _EXPERTS_PER_TOKEN.fullmatch(name)), default=1)
    smaller = count
    while smaller % 2 == 0 and smaller // 2 >= fewest:
        smaller //= 2
    return count, smaller


def _renamed(model: nn.Module, plan: _Renaming) -> nn.Module:
    """Copy of the module with the renamed dimensions; parameters and buffers are cut to their new shapes."""
    torch.manual_seed(0)  # of random weights: PyTorch draws its first seed in each process
    narrow = copy_with(model, lambda tensor: _cut(tensor, plan))
    for own in _attributes(narrow):
        for name, value in list(own.items()):
            if _counts_heads(name, value):
                own[name] = value // plan.divisor if plan.heads else value
            elif any(part in name for part in _FIXED) or _EXPERTS_PER_TOKEN.fullmatch(name):
                continue
            elif isinstance(value, tuple) and value and all(type(part) is int for part in value):
                own[name] = tuple(plan(part) if part else part for part in value)
            elif type(value) is int and 0 < value < _MOST_ATTRIBUTE:
                own[name] = plan(value)
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
