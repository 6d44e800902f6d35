"""Copies of one model at several widths and depths, to extrapolate measurements to its full size."""

from __future__ import annotations

import math
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from smp_advisor.profiling.fake import default_dtype
from smp_advisor.profiling.gpu_kernels import without_initialization
from smp_advisor.profiling.scaled.axes import EXPERTS, VOCABULARY, Axis, Widths
from smp_advisor.profiling.scaled.config_sizes import axes_of, resized, width_fractions
from smp_advisor.profiling.scaled.experts import experts_of, with_experts
from smp_advisor.profiling.scaled.full_size import Dimension
from smp_advisor.profiling.scaled.narrow import Renaming, head_counts, renamed
from smp_advisor.profiling.structure import dimensions, parameter_total
from smp_advisor.profiling.truncation import remaining_children, truncated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn

    from smp_advisor.profiling.profiled_model import ProfiledModel
    from smp_advisor.profiling.scaled.interpolation import Raised
    from smp_advisor.profiling.scaled.reduction import WidthFraction
    from smp_advisor.profiling.structure import Stack

__all__ = ["Variants", "variants_of"]

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
