"""Smaller configurations of the same architecture."""

from __future__ import annotations

import copy
import math
import tomllib
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from smp_advisor.profiling.scaled.result import Reduction

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "PARTS",
    "WidthFraction",
    "count_of",
    "fractions_of_heads",
    "limit_vocabulary",
    "names_of",
    "own",
    "reduced",
    "reductions_between",
    "scale_widths",
    "truncate_layer_lists",
    "values_of",
]

PARTS = ("text_config", "vision_config", "encoder", "decoder")
"""Fields with the configurations of parts of a model."""


@cache
def _names() -> dict[str, list[str]]:
    text = files("smp_advisor.profiling.scaled").joinpath("dimensions.toml").read_text(encoding="utf-8")
    names: dict[str, list[str]] = tomllib.loads(text)
    return names


def names_of(kind: str) -> list[str]:
    """Names of the fields of a kind, as in ``dimensions.toml``."""
    return _names()[kind]


def own(config: Any, name: str) -> Any:
    """Value of the configuration's own field; aliases of other fields are ignored."""
    return vars(config).get(name)


def count_of(config: Any, name: str) -> int | None:
    """Value of a field that is a positive integer; None if it is none."""
    value = own(config, name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def values_of(config: Any, kind: str) -> list[int]:
    """Positive integers among the fields of a kind."""
    return [value for name in names_of(kind) if (value := count_of(config, name))]


_VOCABULARY = 2048
_EXPERTS = (4, 2)
_USUAL_DIVISOR = 16
_SMALLEST_DIVISOR = 4
_LEAST_HEADS = 2
"""With a single head, kernels and views differ, and so does memory."""


@dataclass(frozen=True, slots=True)
class WidthFraction:
    """Factor ``over / under`` of widths, and of heads or of their width."""

    over: int
    under: int
    with_key_value_heads: bool = True
    with_heads: bool = True
    """Whether the number of heads is scaled; otherwise their width is."""


def reduced(config: Any, layers: int) -> Iterator[Any]:
    """Smaller configurations with `layers` layers to try, the smallest useful one first.

    Widths and heads shrink by one fraction; a dimension that it does not divide stays unchanged. The vocabulary and the
    experts shrink to a few. There are more layers if `layers` would not include one layer of each kind. Settings that
    shape the architecture are unchanged.
    """
    for fraction in [*fractions_of_heads(config), None]:
        for experts in _EXPERTS if values_of(config, "experts") else _EXPERTS[:1]:
            yield _reduce(copy.deepcopy(config), fraction, layers, experts)


def reductions_between(full: Any, small: Any) -> list[Reduction]:
    """Differences between two configurations, by field name."""
    reductions = []
    for group in ("layers", "widths", "heads", "key_value_heads", "experts", "experts_per_token", "vocabularies"):
        for name in names_of(group):
            before, after = count_of(full, name), count_of(small, name)
            if before and after and before != after:
                reductions.append(Reduction(name, before, after))
    for name in names_of("layers_of_stages"):
        before, after = own(full, name), own(small, name)
        if isinstance(before, list | tuple) and list(before) != list(after):
            reductions.append(Reduction(f"{name} in total", sum(before), sum(after)))
    for name in PARTS:
        inner = getattr(full, name, None)
        if hasattr(inner, "to_dict"):
            reductions += [
                Reduction(f"{name}.{part.name}", part.full, part.copy)
                for part in reductions_between(inner, getattr(small, name))
            ]
    return reductions


def fractions_of_heads(config: Any) -> list[WidthFraction]:
    """Fractions that divide the heads evenly, ordered by how close the divisor is to 16.

    Heads that share states in groups remain a multiple of the groups, and the smallest fraction is the first.
    """
    heads = values_of(config, "heads")
    groups = values_of(config, "key_value_heads")
    fractions: list[WidthFraction] = []
    if heads:
        fractions += [WidthFraction(1, under) for under in _divisors(math.gcd(*heads, *groups))]
        if groups and all(head % groups[0] == 0 for head in heads):
            share = math.gcd(*(head // groups[0] for head in heads))
            fractions += [WidthFraction(1, under, with_key_value_heads=False) for under in _divisors(share)]
    else:
        widths = values_of(config, "widths")
        fractions += [WidthFraction(1, under) for under in (16, 8, 4) if widths and widths[0] % under == 0]
    useful = [fraction for fraction in fractions if fraction.under >= _SMALLEST_DIVISOR] or fractions
    useful.sort(key=lambda fraction: (abs(fraction.under - _USUAL_DIVISOR), not fraction.with_key_value_heads))
    shared = math.lcm(*values_of(config, "head_groups"))
    fractions = [_with_enough_heads(fraction, heads, groups, shared) for fraction in useful]
    return sorted(fractions, key=lambda fraction: Fraction(fraction.over, fraction.under)) if shared > 1 else fractions


def _with_enough_heads(fraction: WidthFraction, heads: list[int], groups: list[int], shared: int) -> WidthFraction:
    scaled = [*heads, *(groups if fraction.with_key_value_heads and min(groups, default=2) > 1 else [])]

    def is_enough(over: int) -> bool:
        counts = [count * over // fraction.under for count in scaled]
        return min(counts, default=_LEAST_HEADS) >= _LEAST_HEADS and not any(count % shared for count in counts)

    over = next((over for over in range(1, fraction.under) if is_enough(over)), fraction.under)
    return WidthFraction(over, fraction.under, with_key_value_heads=fraction.with_key_value_heads)


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(2, number + 1) if number % divisor == 0]


def _reduce(config: Any, fraction: WidthFraction | None, layers: int, experts: int) -> Any:
    for inner in PARTS:
        part = getattr(config, inner, None)
        if hasattr(part, "to_dict"):
            setattr(config, inner, _reduce(part, usual_fraction(part) if fraction else None, layers, experts))
    if fraction is not None:
        scale_widths(config, fraction)
    _reduce_layers(config, layers)
    limit_vocabulary(config, _VOCABULARY)
    groups = max(values_of(config, "expert_groups"), default=1)
    if groups > 1:  # a token uses some of the groups, each of at least two experts
        needed = 2 * max(groups, *values_of(config, "experts_per_token"), experts)
        _limit(config, "experts", math.ceil(needed / groups) * groups)
    else:
        _limit(config, "experts", experts)
        smallest = min(values_of(config, "experts"), default=experts)
        _limit(config, "experts_per_token", smallest)
    return config


def scale_widths(config: Any, fraction: WidthFraction) -> None:
    """Multiply widths, and heads or their width, by the fraction; what it does not divide stays unchanged."""
    heads = ["heads", *(["key_value_heads"] if fraction.with_key_value_heads else [])]
    groups = ["widths", *(heads if fraction.with_heads else ["head_widths"])]
    for name in (name for group in groups for name in names_of(group)):
        value = count_of(config, name)
        if value and value % fraction.under == 0:
            setattr(config, name, value // fraction.under * fraction.over)


def _reduce_layers(config: Any, layers: int) -> None:
    for name in names_of("dense_layers_first"):
        if (count_of(config, name) or 0) > 1:
            setattr(config, name, 1)
    kinds = [list(value) for name in names_of("by_layer") if isinstance(value := own(config, name), list | tuple)]
    layers = max(
        layers + sum((count_of(config, name) or 0) > 0 for name in names_of("dense_layers_first")),
        *(count_of(config, name) or 0 for name in names_of("layer_periods")),
        *(max((order.index(kind) for kind in set(order)), default=0) + 1 for order in kinds),
    )
    _limit(config, "layers", layers)
    for name in names_of("layers_of_stages"):
        value = own(config, name)
        if isinstance(value, list | tuple) and all(isinstance(count, int) for count in value):
            setattr(config, name, [min(count, layers) for count in value])
    truncate_layer_lists(config, layers)


def truncate_layer_lists(config: Any, layers: int) -> None:
    """Cut lists with one entry per layer."""
    for name in names_of("by_layer"):
        value = own(config, name)
        if isinstance(value, list | tuple):
            setattr(config, name, list(value)[:layers])


def limit_vocabulary(config: Any, maximum: int) -> None:
    """Limit the vocabulary, and replace special tokens outside it."""
    _limit(config, "vocabularies", maximum)
    size = min(values_of(config, "vocabularies"), default=None)
    for name, value in list(vars(config).items()):
        # Special tokens outside the smaller vocabulary.
        if size and name.endswith("_token_id") and isinstance(value, int) and value >= size:
            setattr(config, name, 0)
        if size and name.endswith("_token_id") and isinstance(value, list):
            setattr(config, name, [token if token < size else 0 for token in value])


def _limit(config: Any, group: str, maximum: int) -> None:
    for name in names_of(group):
        value = count_of(config, name)
        if value and value > maximum:
            setattr(config, name, maximum)


def usual_fraction(config: Any) -> WidthFraction | None:
    """The preferred fraction of widths and heads; None if they have no common divisor."""
    return next(iter(fractions_of_heads(config)), None)
