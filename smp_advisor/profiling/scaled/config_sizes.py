"""Sizes of a configuration from which copies are extrapolated: depths, experts, vocabulary and widths."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from smp_advisor.profiling.scaled.axes import EXPERTS, VOCABULARY, Axis, Widths
from smp_advisor.profiling.scaled.fields import PARTS, count_of, names_of, own, values_of
from smp_advisor.profiling.scaled.reduction import (
    WidthFraction,
    fractions_of_heads,
    limit_vocabulary,
    scale_widths,
    truncate_layer_lists,
)
from smp_advisor.profiling.structure import repetition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["axes_of", "resized", "width_fractions"]

_VOCABULARIES = (512, 1024)
_LEAST_EXPERTS = 4
_HEAD_WIDTHS = (4, 8, 16, 2)
"""Widths of a head in the narrowest copy, the best first."""
_HIDDEN = (64, 128)
"""Hidden sizes of the narrowest copy if the width of a head does not depend on it."""
_NODES = 3
"""Widths to measure: every figure is of degree 2 in the width."""


def axes_of(config: Any) -> tuple[Axis, ...]:
    """Depths, experts and vocabulary from which figures are extrapolated linearly; a copy keeps all other sizes.

    A copy has one layer of each kind and the dense layers before them, or twice as many kinds.
    """
    axes = []
    depths: dict[tuple[int, int, int], list[str]] = defaultdict(list)
    for prefix, part in _parts(config):
        stages = {
            name: value for name in names_of("layers_of_stages") if isinstance(value := own(part, name), list | tuple)
        }
        for name, counts in stages.items():
            # Blocks of a stage may alternate, as in Swin.
            axes += [Axis(f"{prefix}{name}[{i}]", 2, 4, count) for i, count in enumerate(counts) if count > 4]
        for name in () if stages else names_of("layers"):
            count = count_of(part, name)
            period, low = _layers(part, count or 0)
            if count and low + period < count:
                depths[low, low + period, count].append(prefix + name)
    axes += [Axis(" and ".join(names), *sizes) for sizes, names in depths.items()]
    experts = _experts(config)
    vocabularies = {size for _, part in _parts(config) for size in values_of(part, "vocabularies")}
    if len(vocabularies) == 1 and max(vocabularies) > _VOCABULARIES[1]:
        axes.append(Axis(VOCABULARY, *_VOCABULARIES, vocabularies.pop()))
    return (*axes, *experts)


def resized(config: Any, fraction: WidthFraction | None, sizes: Mapping[str, int]) -> Any:
    """The configuration with widths and heads times the fraction, and the given size on each axis."""
    result = copy.deepcopy(config)
    for prefix, part in _parts(result):
        if fraction is not None:
            scale_widths(part, fraction)
        _set_depths(part, prefix, sizes)
        if VOCABULARY in sizes:
            limit_vocabulary(part, sizes[VOCABULARY])
        for name in names_of("experts") if EXPERTS in sizes else ():
            if count_of(part, name):
                setattr(part, name, sizes[EXPERTS])
    return result


def _set_depths(part: Any, prefix: str, sizes: Mapping[str, int]) -> None:
    layers = {prefix + name: name for name in names_of("layers")}
    for axis, size in sizes.items():
        for name in layers.keys() & axis.split(" and "):
            setattr(part, layers[name], size)
            truncate_layer_lists(part, size)
    for name in names_of("layers_of_stages"):
        stages = own(part, name)
        if isinstance(stages, list | tuple):
            setattr(part, name, [sizes.get(f"{prefix}{name}[{i}]", count) for i, count in enumerate(stages)])


def width_fractions(config: Any) -> Iterator[tuple[WidthFraction, Widths]]:
    """Ways to scale the widths: with narrower heads, which gives the smallest copies, or else with fewer heads."""
    parts = [part for _, part in _parts(config)]
    name, full = next(
        ((name, size) for part in parts for name in names_of("widths") if (size := count_of(part, name))), ("", 0)
    )
    heads = [
        (values_of(part, "head_widths") or [values_of(part, "widths")[0] // values_of(part, "heads")[0]])[0]
        for part in parts
        if values_of(part, "widths") and values_of(part, "heads")
    ]
    divisors = [heads[0] // width for width in _HEAD_WIDTHS if heads and heads[0] % width == 0]
    for under in (under for under in divisors if under > _NODES and all(head % (2 * under) == 0 for head in heads)):
        widths = Widths(name=name, full=full, nodes=(1, 2, 3), under=under, check=4)
        yield WidthFraction(1, under, with_heads=False), widths
    # A head of a width of its own stays as it is.
    sizes = [size for size in _HIDDEN if full % size == 0 and any(values_of(part, "head_widths") for part in parts)]
    for under in (full // size for size in sizes if full // size > _NODES + 1):
        widths = Widths(name=name, full=full, nodes=(1, 2, 3), under=under, check=4)
        yield WidthFraction(1, under, with_heads=False), widths
    for fraction in fractions_of_heads(config):
        nodes = tuple(range(fraction.over, fraction.over + _NODES))
        if len(parts) == 1 and nodes[-1] < fraction.under:
            check = nodes[-1] + 1 if nodes[-1] + 1 < fraction.under else 0
            yield (
                replace(fraction, over=1),
                Widths(name=name, full=full, nodes=nodes, under=fraction.under, check=check),
            )


def _parts(config: Any) -> list[tuple[str, Any]]:
    """The configuration and those of its parts, with the prefix of their names."""
    inner = [(f"{name}.", getattr(config, name, None)) for name in PARTS]
    return [("", config), *((name, part) for name, part in inner if hasattr(part, "to_dict"))]


def _layers(config: Any, count: int) -> tuple[int, int]:
    """Period of the kinds of layers, and the fewest layers: those before the first period, and one period."""
    orders = [value for name in names_of("by_layer") if isinstance(value := own(config, name), list | tuple)]
    kinds = [repetition(list(order)[:count]) or (count, 0) for order in orders if order]
    period = math.lcm(*values_of(config, "layer_periods"), *(size for _, size in kinds if size), 1)
    dense = sum(values_of(config, "dense_layers_first"))
    return period, max(dense, *(before for before, _ in kinds), 0) + period


def _experts(config: Any) -> list[Axis]:
    """Experts of one number in all parts of the model; each token has as many experts as in the full model."""
    numbers = {size for _, part in _parts(config) for size in values_of(part, "experts")}
    if len(numbers) != 1:
        return []
    full = numbers.pop()
    per_token = max((size for _, part in _parts(config) for size in values_of(part, "experts_per_token")), default=1)
    groups = max((size for _, part in _parts(config) for size in values_of(part, "expert_groups")), default=1)
    low = math.ceil(Fraction(max(per_token, _LEAST_EXPERTS, 2 * groups if groups > 1 else 1), groups)) * groups
    return [Axis(EXPERTS, low, 2 * low, full)] if 2 * low < full else []
