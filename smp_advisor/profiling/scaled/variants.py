"""Copies of one model at several widths and depths, to extrapolate measurements to its full size."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import torch

from smp_advisor.profiling.fake import default_dtype
from smp_advisor.profiling.gpu_kernels import without_initialization
from smp_advisor.profiling.scaled.experts import experts_of, with_experts
from smp_advisor.profiling.scaled.narrow import Renaming, head_counts, renamed
from smp_advisor.profiling.scaled.reduction import (
    PARTS,
    WidthFraction,
    count_of,
    fractions_of_heads,
    limit_vocabulary,
    names_of,
    own,
    scale_widths,
    truncate_layer_lists,
    values_of,
)
from smp_advisor.profiling.scaled.result import Dimension
from smp_advisor.profiling.structure import dimensions, parameter_total, remaining_children, repetition, truncated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import nn

    from smp_advisor.profiling.profiled_model import ProfiledModel
    from smp_advisor.profiling.scaled.extrapolated import Raised
    from smp_advisor.profiling.structure import Stack

__all__ = ["EXPERTS", "VOCABULARY", "Axis", "Variants", "variants_of"]

EXPERTS, VOCABULARY = "experts", "vocabulary"


@dataclass(frozen=True, slots=True)
class Axis:
    """A dimension in which every figure is linear: a depth, the vocabulary or the number of experts."""

    name: str
    low: int
    high: int
    full: int

    @property
    def share(self) -> Fraction:
        """Place of the full size: 0 is `low`, 1 is `high`."""
        return Fraction(self.full - self.low, self.high - self.low)


@dataclass(frozen=True, kw_only=True, slots=True)
class Widths:
    """Widths of copies, as numerators of a fraction of the full width. All of a model's widths scale together."""

    name: str = ""
    """The width to display: ``hidden_size``."""
    full: int = 0
    nodes: tuple[int, ...] = (1,)
    """Numerators to measure. Every figure is of degree 2 in the width."""
    under: int = 1
    """Denominator, which is the numerator of the full width."""
    check: int = 0
    """Numerator of a further copy that confirms the polynomial; 0 for none."""

    @property
    def is_full(self) -> bool:
        """Whether copies have the full width."""
        return self.nodes == (self.under,)


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


_VOCABULARIES = (512, 1024)
_MOST_STACKS = 3
"""Stacks of blocks with different numbers of repeats that are extrapolated; others keep their depth."""
_SMALL = 2_000_000
"""Parameters up to which copies have the full width."""
_CHANNELS = 16
"""Channels of convolutional networks are multiples of this times the divisor."""
_CHANNEL_DIVISORS = (8, 4)
_USUAL_DIVISOR = 16
_LEAST_HEADS = 2
"""With a single head, kernels and views differ."""
_LARGE = 60_000_000
"""Parameters above which steps of a copy take too long."""


@dataclass(frozen=True, kw_only=True)
class Variants:
    """Copies of one model, by the numerator of their width and the axes of which they have the higher size."""

    build: Callable[[int, Raised], tuple[nn.Module, Any]]
    """Copy, and its configuration."""
    axes: tuple[Axis, ...]
    widths: Widths

    def raised_at(self, width: int) -> list[Raised]:
        """Copies to measure at a width.

        The cost of the vocabulary is linear in the width, so that two widths determine it. Experts are parts of blocks:
        their cost depends on the depth.
        """
        names = [axis.name for axis in self.axes if axis.name != VOCABULARY or width in self.widths.nodes[:2]]
        pairs = [{EXPERTS, name} for name in names if EXPERTS in names and name not in {EXPERTS, VOCABULARY}]
        return [frozenset(), *(frozenset({name}) for name in names), *map(frozenset, pairs)]

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """Sizes of the copies, and the full size that they are extrapolated to."""
        rows = [Dimension(axis.name, (axis.low, axis.high), axis.full) for axis in self.axes]
        if self.widths.is_full:
            return tuple(rows)
        sizes = tuple(self.widths.full * node // self.widths.under for node in self.widths.nodes)
        return (Dimension(self.widths.name, sizes, self.widths.full), *rows)


def variants_of(
    profiled: ProfiledModel, cut: Sequence[Stack], dtype: torch.dtype, attention: str
) -> Iterator[Variants]:
    """Sets of copies to try, the best first; sets that do not build or are too large are left out.

    Parameters
    ----------
    profiled
        A live module is truncated in place during a build, so call this in a child process only.
    cut
        Stacks of a live module whose blocks can be removed.
    attention
        ``fused`` or ``eager``.
    """
    if profiled.model_class is not None:
        yield from _of_configuration(profiled, dtype, attention)
    elif profiled.module is not None:
        yield from _of_module(profiled.module, cut, dtype)


def _of_configuration(profiled: ProfiledModel, dtype: torch.dtype, attention: str) -> Iterator[Variants]:
    axes = axes_of(profiled.config)

    def configuration(fraction: WidthFraction | None, raised: Raised) -> Any:
        sizes = {axis.name: axis.high if axis.name in raised else axis.low for axis in axes}
        return resized(profiled.config, fraction, sizes)

    def variants(fraction: WidthFraction | None, widths: Widths) -> Variants:
        def build(over: int, raised: Raised) -> tuple[nn.Module, Any]:
            config = configuration(fraction and replace(fraction, over=over), raised)
            torch.manual_seed(0)
            with default_dtype(dtype):
                return profiled.with_config(config).build(attention=attention), config

        return Variants(build=build, axes=axes, widths=widths)

    def parameters(fraction: WidthFraction | None) -> int:
        """Parameters of the deepest copy; 0 if it does not build."""
        deep = frozenset(axis.name for axis in axes if axis.name not in {EXPERTS, VOCABULARY})
        try:
            with torch.device("meta"), without_initialization():
                return parameter_total([profiled.with_config(configuration(fraction, deep)).build()])
        except Exception:  # noqa: BLE001 (configurations may raise anything)
            return 0

    full = parameters(None)
    if 0 < full <= _SMALL:
        yield variants(None, Widths())
    for fraction, widths in width_fractions(profiled.config):
        if 0 < parameters(replace(fraction, over=widths.nodes[-1])) <= _LARGE:
            yield variants(fraction, widths)
    if _SMALL < full <= _LARGE:
        yield variants(None, Widths())


def _of_module(model: nn.Module, cut: Sequence[Stack], dtype: torch.dtype) -> Iterator[Variants]:
    copies = _ModuleCopies(model, cut, dtype)
    full = copies.deep_parameters()
    if full <= _SMALL:
        yield copies.variants(1, Widths(), heads=True)
    hidden = dimensions(model).hidden
    for widths in _widths_of(hidden, head_counts(model)):
        yield copies.variants(hidden, widths, heads=True)
    for under in _CHANNEL_DIVISORS:
        widest = max((p.shape[0] for p in model.parameters() if p.ndim > 1), default=0)
        widths = Widths(name="channels", full=widest, nodes=(1, 2, 3), under=under)
        yield copies.variants(_CHANNELS * under, widths, heads=False)
    if _SMALL < full <= _LARGE:
        yield copies.variants(1, Widths(), heads=True)


class _ModuleCopies:
    """Copies of a live module."""

    def __init__(self, model: nn.Module, cut: Sequence[Stack], dtype: torch.dtype) -> None:
        self.model, self.dtype = model, dtype
        self.depths = _depths(cut)
        vocabulary, experts = dimensions(model).vocab, experts_of(model)
        self.vocabulary = vocabulary if vocabulary > _VOCABULARIES[1] else 0
        axis = Axis(EXPERTS, experts.few, 2 * experts.few, experts.number) if experts else None
        self.experts = axis if axis and axis.high < axis.full else None

    def deep_parameters(self) -> int:
        """Parameters of the copies with two repeats of every block, at full width."""
        with ExitStack() as stack:
            for stacks in self.depths.values():
                stack.enter_context(truncated(self.model, stacks, 2))
            return parameter_total([self.model])

    def variants(self, multiple: int, widths: Widths, *, heads: bool) -> Variants:
        axes = list(self.depths)
        if self.vocabulary and not widths.is_full:
            axes.append(Axis(VOCABULARY, *_VOCABULARIES, self.vocabulary))
        if self.experts and not widths.is_full:
            axes.append(self.experts)

        def build(over: int, raised: Raised) -> tuple[nn.Module, Any]:
            plan = Renaming(
                multiple,
                widths.under,
                over=over,
                vocabulary=0 if widths.is_full else self.vocabulary,
                vocabulary_size=_VOCABULARIES[VOCABULARY in raised],
                heads=heads,
            )
            return self._copy(plan, raised, with_few_experts=self.experts in axes), None

        return Variants(build=build, axes=tuple(axes), widths=widths)

    def _copy(self, plan: Renaming, raised: Raised, *, with_few_experts: bool) -> nn.Module:
        with ExitStack() as stack:
            for axis, stacks in self.depths.items():
                stack.enter_context(truncated(self.model, stacks, 2 if axis.name in raised else 1))
            experts = experts_of(self.model) if with_few_experts else None  # by the paths of the remaining blocks
            if experts is not None and self.experts is not None:
                number = self.experts.high if EXPERTS in raised else self.experts.low
                stack.enter_context(with_experts(self.model, experts, number))
            return renamed(self.model, plan).to(self.dtype)


def _depths(cut: Sequence[Stack]) -> dict[Axis, list[Stack]]:
    """Axes of the depth, and the stacks of blocks that each of them changes."""
    groups: dict[int, list[Stack]] = defaultdict(list)
    for stack in sorted(cut, key=lambda stack: -stack.parameters):
        if stack.repeats > 2 and (len(groups) < _MOST_STACKS or stack.repeats in groups):
            groups[stack.repeats].append(stack)
    return {_depth_axis(stacks): stacks for stacks in groups.values()}


def _depth_axis(stacks: Sequence[Stack]) -> Axis:
    name = " and ".join(stack.label for stack in stacks)
    low, high = (len(remaining_children(stacks[0], repeats)) for repeats in (1, 2))
    return Axis(name, low, high, len(stacks[0].names))


def _widths_of(hidden: int, heads: Sequence[int]) -> Iterator[Widths]:
    """Widths with at least two heads of the full width of a head each, closest to a sixteenth first."""
    common = math.gcd(*heads) if heads else _USUAL_DIVISOR
    divisors = [under for under in range(4, common + 1) if common % under == 0 and hidden and hidden % under == 0]
    for under in sorted(divisors, key=lambda under: abs(under - _USUAL_DIVISOR)):
        first = max(1, math.ceil(_LEAST_HEADS * under / min(heads))) if heads else 1
        nodes = (first, first + 1, first + 2)
        if nodes[-1] < under:
            check = nodes[-1] + 1 if nodes[-1] + 1 < under else 0
            yield Widths(name="hidden size", full=hidden, nodes=nodes, under=under, check=check)
