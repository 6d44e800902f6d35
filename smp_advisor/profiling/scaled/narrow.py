"""Narrower copies of a live module: constructed by its class with smaller arguments, or with renamed dimensions."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from smp_advisor.errors import AdvisorError
from smp_advisor.profiling.inputs import example_inputs
from smp_advisor.profiling.scaled.result import Reduction
from smp_advisor.profiling.structure import dimensions, parameter_total

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from smp_advisor.profiling.structure import Dimensions

__all__ = ["Renaming", "constructed_copy", "head_counts", "narrow_copy", "renamed", "runs"]

_DIVISORS = (2, 4, 8, 16)
_CHANNELS = 16
"""Channels of convolutional networks are multiples of this, and remain ones of the groups of normalization."""
_FIXED = ("image_size", "img_size", "resolution", "seq_len", "length", "positions", "kernel")
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


def narrow_copy(model: nn.Module, most_parameters: int) -> Narrowed | None:
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
    """
    if any(p.device.type not in {"cpu", "meta"} for p in model.parameters()):
        return None
    size = dimensions(model)
    heads = head_counts(model)
    vocabulary = [Reduction("vocabulary", size.vocab, _VOCABULARY)] if size.vocab > _VOCABULARY else []
    for plan in _plans(model, size, heads, most_parameters):
        narrow = renamed(model, plan)
        if not runs(narrow):
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


def runs(model: nn.Module) -> bool:
    """Whether the forward pass accepts inputs of the usual forms."""
    from smp_advisor.profiling.input_trial import accepts

    try:
        return accepts(model, example_inputs(model))
    except (AdvisorError, RuntimeError, ValueError, TypeError, IndexError):
        return False


_CONSTRUCTED_DIVISORS = (2, 4, 8)
_LAYERS = re.compile(r"(^|_)(n_?layers?|num_layers|layers|depth|num_blocks|n_blocks|num_\w*layers)$")
_HEAD_ARGUMENTS = re.compile(r"head(?!_?dim|_?size|_?width|_?channels)")
_GROUPS = re.compile(r"norm\w*_groups$|^num_groups$")
_WIDTHS = re.compile(
    r"(^|_)(dim|d_model|n_embd|embed_dim|hidden\w*|width|channels|inner_dim|ffn?_dim|mlp_dim|d_ff|inner_size)$"
)
_FIXED_ARGUMENTS = re.compile(
    r"head|^in_|^out_|input|output|num_channels|context|cross|joint|pool|caption|time|rope|max|latent"
)
"""Widths of inputs and heads, which remain."""
_FEW_LAYERS = 2


def constructed_copy(model: nn.Module, most_parameters: int) -> Narrowed | None:
    """The widest smaller module that its class constructs, fits and runs; None if there is none.

    Parameters
    ----------
    model
        A module, which is not modified.
    most_parameters
        Maximum parameters of the copy.
    """
    arguments = _arguments(model)
    if arguments is None or not _rebuilds(model, arguments):
        return None
    for divisor in _CONSTRUCTED_DIVISORS:
        for with_heads in (True, False):
            smaller = {name: _reduced(name, value, divisor, with_heads=with_heads) for name, value in arguments.items()}
            if smaller == arguments:
                continue
            try:
                with torch.device("meta"):
                    count = parameter_total([type(model)(**smaller)])
                if count > most_parameters:
                    continue
                torch.manual_seed(0)
                copy = type(model)(**smaller)
            except Exception:  # noqa: BLE001, S112 - a constructor may raise anything; the next sizes are tried
                continue
            if runs(copy):
                return Narrowed(model=copy, reductions=tuple(_reductions(arguments, smaller)))
    return None


def _arguments(model: nn.Module) -> dict[str, Any] | None:
    """Arguments of the constructor that the module stores; None if one without a default is not stored."""
    try:
        parameters = dict(inspect.signature(type(model)).parameters)
    except (TypeError, ValueError):
        return None
    stored: dict[str, Any] = dict(vars(model))
    for name in ("config", "cfg", "args", "params", "hparams"):
        config = getattr(model, name, None)
        if isinstance(config, Mapping):
            stored |= config
        elif dataclasses.is_dataclass(config) and not isinstance(config, type):
            stored = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)} | stored
    arguments = {}
    for name, parameter in parameters.items():
        if parameter.kind in {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
            continue
        if name in stored and _is_plain(stored[name]):
            arguments[name] = stored[name]
        elif parameter.default is inspect.Parameter.empty:
            return None
    return arguments


def _rebuilds(model: nn.Module, arguments: Mapping[str, Any]) -> bool:
    """Whether the arguments construct this module: a size that is not stored would have its default instead."""
    try:
        with torch.device("meta"):
            rebuilt = type(model)(**arguments)
    except Exception:  # noqa: BLE001 - a constructor may raise anything
        return False
    shapes = [{name: tensor.shape for name, tensor in module.named_parameters()} for module in (model, rebuilt)]
    return shapes[0] == shapes[1]


def _is_plain(value: Any) -> bool:
    """Whether a value can be passed again: numbers, texts, lists of them, dataclasses."""
    if isinstance(value, list | tuple):
        return all(_is_plain(part) for part in value)
    is_record = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return value is None or isinstance(value, int | float | str) or is_record


def _reduced(name: str, value: Any, divisor: int, *, with_heads: bool) -> Any:
    """The argument at a smaller size; unchanged if it is no width, number of heads or number of layers."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        sizes = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        return dataclasses.replace(
            value, **{key: _reduced(key, size, divisor, with_heads=with_heads) for key, size in sizes.items()}
        )
    if isinstance(value, list | tuple) and value and all(type(part) is int for part in value):
        parts = [_reduced(name, part, divisor, with_heads=with_heads) for part in value]
        return type(value)(parts) if _WIDTHS.search(name) else value
    if type(value) is not int:
        return value
    if _LAYERS.search(name):
        return min(value, _FEW_LAYERS)
    if _GROUPS.search(name):
        return value // divisor if value % divisor == 0 else value
    if _HEAD_ARGUMENTS.search(name):
        return value // divisor if with_heads and value % divisor == 0 else value
    is_width = _WIDTHS.search(name) and not _FIXED_ARGUMENTS.search(name)
    return value // divisor if is_width and value % (8 * divisor) == 0 else value


def _reductions(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Reduction]:
    for name, value in before.items():
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from _reductions(vars(value), vars(after[name]))
        elif isinstance(value, list | tuple) and value != after[name]:
            yield from (Reduction(name, a, b) for a, b in zip(value, after[name], strict=True) if a != b)
        elif value != after[name]:
            yield Reduction(name, value, after[name])
