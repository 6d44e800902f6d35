"""From steps of a truncated model at a few sizes to the whole model at every size."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from smp_advisor.profiling.measured import Attending, BlockProfile, Product, Segment
from smp_advisor.profiling.polynomial import Polynomial
from smp_advisor.profiling.structure import parameter_total
from smp_advisor.profiling.truncation import kept, placed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

    from smp_advisor.profiling.step import StepMeasure
    from smp_advisor.profiling.structure import Stack
    from smp_advisor.profiling.watch import BlockMeasure, Stretch

    Points = Mapping[tuple[int, int], StepMeasure]

__all__ = ["Composed", "compose", "kept_paths", "timeline"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Composed:
    """The whole model, of a truncated one."""

    blocks: tuple[BlockProfile, ...]
    saved_bytes: Polynomial
    forward_flops: Polynomial
    backward_flops: Polynomial
    timeline: tuple[Segment, ...]


def kept_paths(stack: Stack, repeats: int) -> tuple[str, ...]:
    """Paths of the blocks of a truncated stack: its children are numbered anew."""
    return tuple(f"{stack.path}.{i}" if stack.path else str(i) for i in range(len(kept(stack, repeats))))


def compose(points: Points, model: nn.Module, found: Sequence[Stack], repeats: int) -> Composed:
    """Fit every figure over the points and put back the repeats that were cut.

    Parameters
    ----------
    points
        Steps of the model with `repeats` repeats of each stack, by (batch, sequence).
    model
        The whole model, to count the blocks' parameters.
    """
    any_step = next(iter(points.values()))
    used = [
        stack
        for stack in found
        if all(any_step.blocks[p].calls for p in kept_paths(stack, repeats) if p in any_step.blocks)
    ]
    order = {stretch.block: place for place, stretch in reversed(list(enumerate(any_step.stretches)))}
    used.sort(key=lambda stack: order.get(kept_paths(stack, repeats)[0], len(order)))
    saved = Polynomial.fit_each(points, lambda step: step.saved_bytes)
    forward = Polynomial.fit_each(points, lambda step: step.forward_flops)
    backward = Polynomial.fit_each(points, lambda step: step.backward_flops)
    blocks: list[BlockProfile] = []
    for stack in used:
        profiles = _profiles(points, model, stack, repeats)
        places = placed(stack, repeats)
        blocks += [profiles[place] for place in places]
        counts = [places.count(place) - 1 for place in range(len(profiles))]
        for profile, more in zip(profiles, counts, strict=True):
            saved += profile.saved_bytes * more
            forward += profile.forward_flops * more
            backward += profile.backward_flops * more
    return Composed(
        blocks=tuple(blocks),
        saved_bytes=saved,
        forward_flops=forward,
        backward_flops=backward,
        timeline=timeline(points, used, repeats),
    )


def _profiles(points: Points, model: nn.Module, stack: Stack, repeats: int) -> list[BlockProfile]:
    return [
        _profile(points, model.get_submodule(stack.paths[place]), path, stack.paths[place])
        for place, path in zip(kept(stack, repeats), kept_paths(stack, repeats), strict=True)
    ]


def _profile(points: Points, module: nn.Module, path: str, name: str) -> BlockProfile:
    at = {point: step.blocks[path] for point, step in points.items()}
    one = next(iter(at.values()))

    def fit(read: Callable[[BlockMeasure], int]) -> Polynomial:
        return Polynomial.fit_each(at, read)

    alike = len({len(measure.products) for measure in at.values()}) == 1
    parameters = list({id(p): p for p in module.parameters()}.values())
    return BlockProfile(
        name=name,
        kind=type(module).__name__,
        parameters=parameter_total([module]),
        trainable_parameters=sum(p.numel() for p in parameters if p.requires_grad),
        one_dimensional_parameters=sum(p.numel() for p in parameters if p.ndim < 2),
        hidden=one.hidden,
        saved_bytes=fit(lambda measure: measure.saved_bytes),
        input_bytes=fit(lambda measure: measure.input_bytes),
        forward_flops=fit(lambda measure: measure.forward_flops),
        backward_flops=fit(lambda measure: measure.backward_flops),
        products=tuple(
            Product(
                name=product.name,
                inputs=product.inputs,
                outputs=product.outputs,
                experts=product.experts,
                flops=fit(partial(_product_flops, place)),
            )
            for place, product in enumerate(one.products)
        )
        if alike
        else (),
        attentions=tuple(
            Attending(
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                value_dim=value_dim,
                causal=causal,
                dropout=dropout > 0,
            )
            for heads, kv_heads, head_dim, value_dim, causal, dropout in one.attentions
        ),
        attention_flops=fit(lambda measure: measure.attention_flops),
    )


def _product_flops(place: int, measure: BlockMeasure) -> int:
    return measure.products[place].flops


def _change(place: int, stretches: Sequence[Stretch]) -> int:
    return stretches[place].change_bytes


def _rise(place: int, stretches: Sequence[Stretch]) -> int:
    return stretches[place].rise_bytes


def timeline(points: Points, found: Sequence[Stack], repeats: int) -> tuple[Segment, ...]:
    """Live memory of the whole model's step; empty where the points do not run alike."""
    orders = {tuple((s.phase, s.block) for s in _passes(step)) for step in points.values()}
    if len(orders) != 1:
        return ()
    order = list(next(iter(orders)))
    passes = {point: _passes(step) for point, step in points.items()}
    segments = [
        Segment(
            phase="forward" if order[i][0] == "forward" else "backward",
            change_bytes=Polynomial.fit_each(passes, partial(_change, i)),
            rise_bytes=Polynomial.fit_each(passes, partial(_rise, i)),
        )
        for i in range(len(order))
    ]
    inserted: dict[int, list[Segment]] = {}
    for stack in found:
        cut = stack.repeats - min(repeats, stack.repeats)
        if not cut:
            continue
        last = stack.prefix + min(repeats, stack.repeats) * stack.period
        period = kept_paths(stack, repeats)[last - stack.period : last]
        for phase in ("forward", "backward"):
            places = [i for i, mark in enumerate(order) if mark[0] == phase and mark[1] in period]
            if len(places) != len(period):
                return ()
            # Forward, what stands between two blocks belongs to the one that follows.
            start = places[0] - (phase == "forward")
            inserted[places[-1]] = segments[start : places[-1] + 1] * cut
    result: list[Segment] = []
    for place, segment in enumerate(segments):
        result += [segment, *inserted.get(place, ())]
    return tuple(result)


def _passes(step: StepMeasure) -> list[Stretch]:
    return [stretch for stretch in step.stretches if stretch.phase in {"forward", "backward"}]
