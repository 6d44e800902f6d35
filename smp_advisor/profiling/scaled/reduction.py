"""Smaller models of the same architecture: reduced configurations, and modules with renamed dimensions."""

from __future__ import annotations

import copy
import math
import tomllib
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from smp_advisor.profiling.scaled.result import Reduction
from smp_advisor.profiling.structure import hidden_size, largest_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Narrowed", "narrow_copy", "reduced", "reductions_between"]

_PARTS = ("text_config", "vision_config", "encoder", "decoder")
"""Fields with the configurations of parts of a model."""


@cache
def _names_of(kind: str) -> list[str]:
    """Names of the fields of a kind, as in ``dimensions.toml``."""
    text = files("smp_advisor.profiling.scaled").joinpath("dimensions.toml").read_text(encoding="utf-8")
    names: list[str] = tomllib.loads(text)[kind]
    return names


def _own(config: Any, name: str) -> Any:
    """Value of the configuration's own field; aliases of other fields are ignored."""
    return vars(config).get(name)


def _count_of(config: Any, name: str) -> int | None:
    """Value of a field that is a positive integer; None if it is none."""
    value = _own(config, name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _values_of(config: Any, kind: str) -> list[int]:
    """Positive integers among the fields of a kind."""
    return [value for name in _names_of(kind) if (value := _count_of(config, name))]


_VOCABULARY = 2048
_EXPERTS = (4, 2)
_USUAL_DIVISOR = 16
_SMALLEST_DIVISOR = 4
_LEAST_HEADS = 2
"""With a single head, kernels and views differ, and so does memory."""


@dataclass(frozen=True, slots=True)
class _Fraction:
    """Factor ``over / under`` of widths and heads."""

    over: int
    under: int
    with_key_value_heads: bool = True


def reduced(config: Any, layers: int) -> Iterator[Any]:
    """Smaller configurations with `layers` layers to try, the smallest useful one first.

    Widths and heads shrink by one fraction; a dimension that it does not divide stays unchanged. The vocabulary and the
    experts shrink to a few. There are more layers if `layers` would not include one layer of each kind. Settings that
    shape the architecture are unchanged.
    """
    for fraction in [*_fractions_of_heads(config), None]:
        for experts in _EXPERTS if _values_of(config, "experts") else _EXPERTS[:1]:
            yield _reduce(copy.deepcopy(config), fraction, layers, experts)


def reductions_between(full: Any, small: Any) -> list[Reduction]:
    """Differences between two configurations, by field name."""
    reductions = []
    for group in ("layers", "widths", "heads", "key_value_heads", "experts", "experts_per_token", "vocabularies"):
        for name in _names_of(group):
            before, after = _count_of(full, name), _count_of(small, name)
            if before and after and before != after:
                reductions.append(Reduction(name, before, after))
    for name in _names_of("layers_of_stages"):
        before, after = _own(full, name), _own(small, name)
        if isinstance(before, list | tuple) and list(before) != list(after):
            reductions.append(Reduction(f"{name} in total", sum(before), sum(after)))
    for name in _PARTS:
        inner = getattr(full, name, None)
        if hasattr(inner, "to_dict"):
            reductions += [
                Reduction(f"{name}.{part.name}", part.full, part.copy)
                for part in reductions_between(inner, getattr(small, name))
            ]
    return reductions


def _fractions_of_heads(config: Any) -> list[_Fraction]:
    """Fractions that divide the heads evenly, ordered by how close the divisor is to 16.

    Heads that share states in groups remain a multiple of the groups, and the smallest fraction is the first.
    """
    heads = _values_of(config, "heads")
    groups = _values_of(config, "key_value_heads")
    fractions: list[_Fraction] = []
    if heads:
        fractions += [_Fraction(1, under) for under in _divisors(math.gcd(*heads, *groups))]
        if groups and all(head % groups[0] == 0 for head in heads):
            share = math.gcd(*(head // groups[0] for head in heads))
            fractions += [_Fraction(1, under, with_key_value_heads=False) for under in _divisors(share)]
    else:
        widths = _values_of(config, "widths")
        fractions += [_Fraction(1, under) for under in (16, 8, 4) if widths and widths[0] % under == 0]
    useful = [fraction for fraction in fractions if fraction.under >= _SMALLEST_DIVISOR] or fractions
    useful.sort(key=lambda fraction: (abs(fraction.under - _USUAL_DIVISOR), not fraction.with_key_value_heads))
    shared = math.lcm(*_values_of(config, "head_groups"))
    fractions = [_with_enough_heads(fraction, heads, groups, shared) for fraction in useful]
    return sorted(fractions, key=lambda fraction: Fraction(fraction.over, fraction.under)) if shared > 1 else fractions


def _with_enough_heads(fraction: _Fraction, heads: list[int], groups: list[int], shared: int) -> _Fraction:
    scaled = [*heads, *(groups if fraction.with_key_value_heads and min(groups, default=2) > 1 else [])]

    def is_enough(over: int) -> bool:
        counts = [count * over // fraction.under for count in scaled]
        return min(counts, default=_LEAST_HEADS) >= _LEAST_HEADS and not any(count % shared for count in counts)

    over = next((over for over in range(1, fraction.under) if is_enough(over)), fraction.under)
    return _Fraction(over, fraction.under, with_key_value_heads=fraction.with_key_value_heads)


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(2, number + 1) if number % divisor == 0]


def _reduce(config: Any, fraction: _Fraction | None, layers: int, experts: int) -> Any:
    for inner in _PARTS:
        part = getattr(config, inner, None)
        if hasattr(part, "to_dict"):
            setattr(
                config,
                inner,
                _reduce(part, next(iter(_fractions_of_heads(part)), None) if fraction else None, layers, experts),
            )
    if fraction is not None:
        _scale_widths(config, fraction)
    _reduce_layers(config, layers)
    _limit_vocabulary(config, _VOCABULARY)
    groups = max(_values_of(config, "expert_groups"), default=1)
    if groups > 1:  # a token uses some of the groups, each of at least two experts
        needed = 2 * max(groups, *_values_of(config, "experts_per_token"), experts)
        _limit(config, "experts", math.ceil(needed / groups) * groups)
    else:
        _limit(config, "experts", experts)
        smallest = min(_values_of(config, "experts"), default=experts)
        _limit(config, "experts_per_token", smallest)
    return config


def _scale_widths(config: Any, fraction: _Fraction) -> None:
    """Multiply widths and heads by the fraction; what it does not divide stays unchanged."""
    groups = ["widths", "heads", *(["key_value_heads"] if fraction.with_key_value_heads else [])]
    for name in (name for group in groups for name in _names_of(group)):
        value = _count_of(config, name)
        if value and value % fraction.under == 0:
            setattr(config, name, value // fraction.under * fraction.over)


def _reduce_layers(config: Any, layers: int) -> None:
    for name in _names_of("dense_layers_first"):
        if (_count_of(config, name) or 0) > 1:
            setattr(config, name, 1)
    kinds = [list(value) for name in _names_of("by_layer") if isinstance(value := _own(config, name), list | tuple)]
    layers = max(
        layers + sum((_count_of(config, name) or 0) > 0 for name in _names_of("dense_layers_first")),
        *(_count_of(config, name) or 0 for name in _names_of("layer_periods")),
        *(max((order.index(kind) for kind in set(order)), default=0) + 1 for order in kinds),
    )
    _limit(config, "layers", layers)
    for name in _names_of("layers_of_stages"):
        value = _own(config, name)
        if isinstance(value, list | tuple) and all(isinstance(count, int) for count in value):
            setattr(config, name, [min(count, layers) for count in value])
    for name in _names_of("by_layer"):
        value = _own(config, name)
        if isinstance(value, list | tuple):
            setattr(config, name, list(value)[:layers])


def _limit_vocabulary(config: Any, maximum: int) -> None:
    """Limit the vocabulary, and replace special tokens outside it."""
    _limit(config, "vocabularies", maximum)
    size = min(_values_of(config, "vocabularies"), default=None)
    for name, value in list(vars(config).items()):
        # Special tokens outside the smaller vocabulary.
        if size and name.endswith("_token_id") and isinstance(value, int) and value >= size:
            setattr(config, name, 0)
        if size and name.endswith("_token_id") and isinstance(value, list):
            setattr(config, name, [token if token < size else 0 for token in value])


def _limit(config: Any, group: str, maximum: int) -> None:
    for name in _names_of(group):
        value = _count_of(config, name)
        if value and value > maximum:
            setattr(config, name, maximum)


_DIVISORS = (1, 2, 4, 8, 16)
"""1 reduces the vocabulary alone."""
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
_MOST_ATTRIBUTE = 2**31
_FAST = 25_000_000
"""Parameters of a copy whose steps take seconds."""


@dataclass(frozen=True, kw_only=True)
class Narrowed:
    """A narrower module and its reduced dimensions."""

    model: nn.Module
    reductions: tuple[Reduction, ...]


def narrow_copy(model: nn.Module, most_parameters: int, accepts: Callable[[nn.Module], bool]) -> Narrowed | None:
    """The widest copy that trains fast and runs, or else that fits; None if no consistent one is found.

    The hidden size and its multiples in parameters, buffers and integer attributes are divided, heads are divided by
    the same number so that their width remains, and other dimensions remain. If that is not consistent, as in
    convolutional networks, all multiples of 16 times the divisor are divided. Whether the result is consistent shows in
    a forward pass: `accepts`.
    """
    if any(p.device.type not in {"cpu", "meta"} for p in model.parameters()):
        return None
    hidden, heads, rows = hidden_size(model), _head_counts(model), largest_table(model, nn.Embedding, nn.EmbeddingBag)
    vocabulary = [Reduction("vocabulary", rows, _VOCABULARY)] if rows > _VOCABULARY else []
    for plan in _plans(model, hidden, rows, heads, most_parameters):
        narrow = _renamed(model, plan)
        if not accepts(narrow):
            continue
        name = "hidden size" if plan.heads else "channels"
        widest = hidden if plan.heads else max(p.shape[1] for p in model.parameters() if p.ndim > 1)
        reductions = []
        if plan.divisor > 1:
            reductions = [Reduction(name, widest, plan(widest))]
            if plan.heads:
                reductions += [Reduction("heads", value, value // plan.divisor) for value in heads]
        return Narrowed(model=narrow, reductions=(*reductions, *vocabulary))
    return None


def _plans(model: nn.Module, hidden: int, rows: int, heads: Sequence[int], most_parameters: int) -> list[_Renaming]:
    """Smaller sizes to try: the widest copy that trains fast, then narrower and wider ones."""
    plans: dict[_Renaming, int] = {}
    for divisor in _DIVISORS:
        for multiple in dict.fromkeys((hidden, _CHANNELS * divisor)):
            by_heads = multiple == hidden
            if not multiple or multiple % divisor:
                continue
            if by_heads and any(value % divisor or value // divisor < _LEAST_HEADS for value in heads):
                continue
            plan = _Renaming(multiple, divisor, vocabulary=rows, heads=by_heads)
            count = sum(math.prod(map(plan, p.shape)) for p in model.parameters())
            if count <= most_parameters:
                plans[plan] = count
    fast = [plan for plan, count in plans.items() if count <= _FAST]
    return [*fast, *(plan for plan in reversed(plans) if plan not in fast)]


@dataclass(frozen=True, slots=True)
class _Renaming:
    """Smaller sizes for the multiples of a number, and for the vocabulary; other sizes remain."""

    multiple: int
    divisor: int
    vocabulary: int
    heads: bool
    """Whether heads are divided, too; otherwise their width is."""

    def __call__(self, value: int) -> int:
        """The new size for a size."""
        if self.vocabulary and value == self.vocabulary:
            return min(value, _VOCABULARY)
        return value // self.divisor if value and value % self.multiple == 0 else value


def _head_counts(model: nn.Module) -> list[int]:
    """Distinct numbers of heads in the attributes of the model's modules."""
    modules = (vars(module).items() for module in model.modules())
    return sorted({value for values in modules for name, value in values if _counts_heads(name, value)})


def _counts_heads(name: str, value: object) -> bool:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 1 < value < 1024
    return is_count and "head" in name and not any(part in name for part in ("dim", "size", "width"))


def _renamed(model: nn.Module, plan: _Renaming) -> nn.Module:
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
                vars(module)[name] = value // plan.divisor if plan.heads else value
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
