"""Smaller configurations of the same architecture."""

from __future__ import annotations

import copy
import math
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from smp_advisor.profiling.scaled.result import Reduction

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["WidthFraction", "at_scale", "layers_of", "reduced", "reductions_between", "usual_fraction", "vocabulary_of"]

_VOCABULARY = 2048
_EXPERTS = (4, 2)
_USUAL_DIVISOR = 16
_SMALLEST_DIVISOR = 4
_LEAST_HEADS = 2
"""With a single head, kernels and views differ, and so does memory."""


@dataclass(frozen=True, slots=True)
class WidthFraction:
    """Factor ``over / under`` of widths and heads, and whether it applies to key-value heads."""

    over: int
    under: int
    with_key_value_heads: bool = True


@cache
def _names() -> dict[str, list[str]]:
    text = files("smp_advisor.profiling.scaled").joinpath("dimensions.toml").read_text(encoding="utf-8")
    names: dict[str, list[str]] = tomllib.loads(text)
    return names


def reduced(config: Any, layers: int) -> Iterator[Any]:
    """Smaller configurations with `layers` layers to try, the smallest useful one first.

    Widths and heads shrink by one fraction; a dimension that it does not divide stays unchanged. The vocabulary and the
    experts shrink to a few. There are more layers if `layers` would not include one layer of each kind. Settings that
    shape the architecture are unchanged.
    """
    for fraction in [*_fractions(config), None]:
        for experts in _EXPERTS if _values(config, "experts") else _EXPERTS[:1]:
            yield _reduce(copy.deepcopy(config), fraction, layers, experts)


def reductions_between(full: Any, small: Any) -> list[Reduction]:
    """Differences between two configurations, by field name."""
    reductions = []
    for group in ("layers", "widths", "heads", "key_value_heads", "experts", "experts_per_token", "vocabularies"):
        for name in _names()[group]:
            before, after = _count(full, name), _count(small, name)
            if before and after and before != after:
                reductions.append(Reduction(name, before, after))
    for name in _names()["layers_of_stages"]:
        before, after = _own(full, name), _own(small, name)
        if isinstance(before, list | tuple) and list(before) != list(after):
            reductions.append(Reduction(f"{name} in total", sum(before), sum(after)))
    for name in ("text_config", "vision_config", "encoder", "decoder"):
        inner = getattr(full, name, None)
        if hasattr(inner, "to_dict"):
            reductions += [
                Reduction(f"{name}.{part.name}", part.full, part.copy)
                for part in reductions_between(inner, getattr(small, name))
            ]
    return reductions


def _fractions(config: Any) -> list[WidthFraction]:
    """Fractions that divide the heads evenly, ordered by how close the divisor is to 16."""
    heads = _values(config, "heads")
    groups = _values(config, "key_value_heads")
    fractions: list[WidthFraction] = []
    if heads:
        fractions += [WidthFraction(1, under) for under in _divisors(math.gcd(*heads, *groups))]
        if groups and all(head % groups[0] == 0 for head in heads):
            share = math.gcd(*(head // groups[0] for head in heads))
            fractions += [WidthFraction(1, under, with_key_value_heads=False) for under in _divisors(share)]
    else:
        widths = _values(config, "widths")
        fractions += [WidthFraction(1, under) for under in (16, 8, 4) if widths and widths[0] % under == 0]
    useful = [fraction for fraction in fractions if fraction.under >= _SMALLEST_DIVISOR] or fractions
    useful.sort(key=lambda fraction: (abs(fraction.under - _USUAL_DIVISOR), not fraction.with_key_value_heads))
    return [_with_enough_heads(fraction, heads, groups) for fraction in useful]


def _with_enough_heads(fraction: WidthFraction, heads: list[int], groups: list[int]) -> WidthFraction:
    scaled = [*heads, *(groups if fraction.with_key_value_heads and min(groups, default=2) > 1 else [])]
    over = 1
    while scaled and min(scaled) * over // fraction.under < _LEAST_HEADS and over < fraction.under:
        over += 1
    return WidthFraction(over, fraction.under, with_key_value_heads=fraction.with_key_value_heads)


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(2, number + 1) if number % divisor == 0]


def _reduce(config: Any, fraction: WidthFraction | None, layers: int, experts: int) -> Any:
    for inner in ("text_config", "vision_config", "encoder", "decoder"):
        part = getattr(config, inner, None)
        if hasattr(part, "to_dict"):
            setattr(config, inner, _reduce(part, usual_fraction(part) if fraction else None, layers, experts))
    if fraction is not None:
        _scale_widths(config, fraction)
    _reduce_layers(config, layers)
    _limit_vocabulary(config, _VOCABULARY)
    if not any((_count(config, name) or 1) > 1 for name in _names()["expert_groups"]):
        _limit(config, "experts", experts)
        smallest = min(_values(config, "experts"), default=experts)
        _limit(config, "experts_per_token", smallest)
    return config


def _scale_widths(config: Any, fraction: WidthFraction) -> None:
    groups = ["widths", "heads", *(["key_value_heads"] if fraction.with_key_value_heads else [])]
    for name in (name for group in groups for name in _names()[group]):
        value = _count(config, name)
        if value and value % fraction.under == 0:
            setattr(config, name, value // fraction.under * fraction.over)


def _reduce_layers(config: Any, layers: int) -> None:
    for name in _names()["dense_layers_first"]:
        if (_count(config, name) or 0) > 1:
            setattr(config, name, 1)
    kinds = [list(value) for name in _names()["by_layer"] if isinstance(value := _own(config, name), list | tuple)]
    layers = max(
        layers + sum((_count(config, name) or 0) > 0 for name in _names()["dense_layers_first"]),
        *(_count(config, name) or 0 for name in _names()["layer_periods"]),
        *(max((order.index(kind) for kind in set(order)), default=0) + 1 for order in kinds),
    )
    _limit(config, "layers", layers)
    for name in _names()["layers_of_stages"]:
        value = _own(config, name)
        if isinstance(value, list | tuple) and all(isinstance(count, int) for count in value):
            setattr(config, name, [min(count, layers) for count in value])
    _truncate_layer_lists(config, layers)


def _truncate_layer_lists(config: Any, layers: int) -> None:
    for name in _names()["by_layer"]:
        value = _own(config, name)
        if isinstance(value, list | tuple):
            setattr(config, name, list(value)[:layers])


def _limit_vocabulary(config: Any, maximum: int) -> None:
    _limit(config, "vocabularies", maximum)
    size = min(_values(config, "vocabularies"), default=None)
    for name, value in list(vars(config).items()):
        # Special tokens outside the smaller vocabulary.
        if size and name.endswith("_token_id") and isinstance(value, int) and value >= size:
            setattr(config, name, 0)
        if size and name.endswith("_token_id") and isinstance(value, list):
            setattr(config, name, [token if token < size else 0 for token in value])


def _limit(config: Any, group: str, maximum: int) -> None:
    for name in _names()[group]:
        value = _count(config, name)
        if value and value > maximum:
            setattr(config, name, maximum)


def _values(config: Any, group: str) -> list[int]:
    return [value for name in _names()[group] if (value := _count(config, name))]


def _count(config: Any, name: str) -> int | None:
    value = _own(config, name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _own(config: Any, name: str) -> Any:
    """Value of the configuration's own field; aliases of other fields are ignored."""
    return vars(config).get(name)


def usual_fraction(config: Any) -> WidthFraction | None:
    """The preferred fraction of widths and heads; None if they have no common divisor."""
    return next(iter(_fractions(config)), None)


def layers_of(config: Any) -> int:
    """Number of layers of the configuration; 0 if it has none, or stacks with different numbers."""
    counts = {vars(config)[name] for name in _names()["layers"] if _count(config, name)}
    return counts.pop() if len(counts) == 1 else 0


def vocabulary_of(config: Any) -> int:
    """Size of the vocabulary; 0 if there is none."""
    return max(_values(config, "vocabularies"), default=0)


def at_scale(config: Any, fraction: WidthFraction, *, layers: int, vocabulary: int) -> Any:
    """The configuration with widths and heads times the fraction, and at most `layers` and `vocabulary`.

    A dimension that the divisor does not divide stays unchanged; measurements are still polynomials in the width.
    """
    result = copy.deepcopy(config)
    _scale_widths(result, fraction)
    _limit(result, "layers", layers)
    _truncate_layer_lists(result, layers)
    _limit_vocabulary(result, vocabulary)
    return result
