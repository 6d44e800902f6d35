"""A smaller copy of a live module by its class's own constructor, with reduced widths, heads and layers.

The arguments are those that the module stores: a configuration (a mapping, a dataclass), or attributes of their names.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from smp_advisor.profiling.scaled.narrow import Narrowed, runs
from smp_advisor.profiling.scaled.result import Reduction
from smp_advisor.profiling.structure import parameter_total

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["constructed_copy"]

_DIVISORS = (2, 4, 8)
_LAYERS = re.compile(r"(^|_)(n_?layers?|num_layers|layers|depth|num_blocks|n_blocks|num_\w*layers)$")
_HEADS = re.compile(r"head(?!_?dim|_?size|_?width|_?channels)")
_GROUPS = re.compile(r"norm\w*_groups$|^num_groups$")
_WIDTHS = re.compile(
    r"(^|_)(dim|d_model|n_embd|embed_dim|hidden\w*|width|channels|inner_dim|ffn?_dim|mlp_dim|d_ff|inner_size)$"
)
_FIXED = re.compile(r"head|^in_|^out_|input|output|num_channels|context|cross|joint|pool|caption|time|rope|max|latent")
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
    for divisor in _DIVISORS:
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
    if _HEADS.search(name):
        return value // divisor if with_heads and value % divisor == 0 else value
    is_width = _WIDTHS.search(name) and not _FIXED.search(name)
    return value // divisor if is_width and value % (8 * divisor) == 0 else value


def _reductions(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Reduction]:
    for name, value in before.items():
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from _reductions(vars(value), vars(after[name]))
        elif isinstance(value, list | tuple) and value != after[name]:
            yield from (Reduction(name, a, b) for a, b in zip(value, after[name], strict=True) if a != b)
        elif value != after[name]:
            yield Reduction(name, value, after[name])
