"""The shape of a transformer from its size alone.

The hidden size is interpolated, in logarithms, between published models; the number of layers follows from the count.
The error of layers times hidden size, and so of checkpoints, is measured by leaving out one published model (and its
equals) at a time. For the 35 GPT models of at least a billion parameters the median is 2 % and the maximum 23 %; for
smaller ones the maximum is 50 %. For the 13 Llama models, whose vocabularies and ties differ, the median is 13 % and
the 90th percentile 37 %.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from smp_advisor.errors import ModelError
from smp_advisor.workload.counts import format_count
from smp_advisor.workload.family import family as family_of
from smp_advisor.workload.from_shape import model_from_shape
from smp_advisor.workload.published import published_shapes

if TYPE_CHECKING:
    from smp_advisor.workload.family import Inference
    from smp_advisor.workload.model import Model

__all__ = ["PartialShape", "activation_band", "can_be_inferred", "infer_shape", "interpolated_hidden"]

_MAXIMUM_LAYERS = 10_000

_SMALLER = 0.95
"""Least size of an inferred model, as a share of the smallest published one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PartialShape:
    """Fixed parts of the shape. None: to be inferred."""

    layers: int | None
    hidden: int | None
    heads: int | None
    vocab: int
    positions: int
    activation: str | None = None
    """None: that of the family."""


def infer_shape(count: int, family: str, partial: PartialShape) -> Model:
    """Model of about `count` parameters with the fixed parts of `partial`."""
    if partial.hidden is not None:
        widths = [partial.hidden]
    elif partial.layers is not None:
        widths = _widths_for_layers(count, family, partial, partial.layers)
    else:
        target = interpolated_hidden(count, family)
        step = _step(count)
        widths = sorted({max(step, int(target // step) * step + k * step) for k in range(-2, 4)})
    if partial.heads is not None:
        widths = [width for width in widths if width % partial.heads == 0]
        if not widths:
            near = interpolated_hidden(count, family)
            raise ModelError(
                f"No hidden size near {near:,.0f} is a multiple of {partial.heads} heads: pass a multiple as hidden."
            )
    candidates = [
        candidate for width in widths for candidate in _candidates(count, family, replace(partial, hidden=width))
    ]
    if not candidates:
        raise ModelError(
            f"{format_count(count)} parameters cannot be made of 1 to {_MAXIMUM_LAYERS:,} layers of hidden size "
            f"{widths[0]} to {widths[-1]} with a vocabulary of {partial.vocab:,}: pass another vocab or hidden."
        )
    return min(candidates, key=lambda candidate: _cost(candidate, count, family))


def activation_band(count: int, family: str) -> float:
    """Relative error of activation memory for nine of ten inferred shapes; see the module's figures."""
    inference = _inference(family)
    return inference.activation_error if count >= 1e9 else inference.activation_error_below_1b


def can_be_inferred(count: int, family: str) -> bool:
    """Whether a family has published models about as small as `count` parameters.

    Vocabularies of Llama have 128,256 words: a model of 125 million parameters would have no room for layers.
    """
    series = _inference(family).series
    return count >= _SMALLER * min(shape.parameters for shape in published_shapes() if shape.series in series)


def _inference(family: str) -> Inference:
    inference = family_of(family).inference
    if inference is None:
        raise ModelError(f"No shape of the family {family!r} can be inferred from a parameter count.")
    return inference


def interpolated_hidden(count: int, family: str) -> float:
    """Hidden size of published models of this form and size, by log-log interpolation."""
    points: list[tuple[float, float]] = []
    for shape in sorted(published_shapes(), key=lambda shape: shape.parameters):
        if shape.series not in _inference(family).series:
            continue
        point = (math.log(shape.parameters), math.log(shape.hidden))
        if points and point[0] - points[-1][0] < math.log(1.03):
            # Two models of the same size: take the mean, so that no segment is almost vertical.
            point = ((points[-1][0] + point[0]) / 2, (points[-1][1] + point[1]) / 2)
            points.pop()
        points.append(point)
    x = math.log(count)
    place = next((i for i in range(1, len(points) - 1) if x <= points[i][0]), len(points) - 1)
    (x0, y0), (x1, y1) = points[place - 1], points[place]
    return math.exp(y0 + (y1 - y0) * (x - x0) / (x1 - x0))


def _step(count: int) -> int:
    """Hidden sizes are multiples of this. Larger models use rounder sizes."""
    if count > 8e9:
        return 1024
    if count > 3e9:
        return 512
    return 256 if count > 3e8 else 64


def _heads(hidden: int) -> int | None:
    """Number of heads about 128 wide (64 below 2048), preferably a multiple of 8, so that 2, 4 and 8 divide it."""
    width = 128 if hidden >= 2048 else 64
    choices = [heads for heads in range(1, hidden // 32 + 1) if hidden % heads == 0]
    return min(
        choices or [1],
        key=lambda heads: (heads % 8 != 0, hidden // heads % 8 != 0, abs(math.log(hidden / heads / width)), heads),
    )


def _model(layers: int, hidden: int, family: str, partial: PartialShape) -> Model:
    heads = partial.heads or _heads(hidden)
    kv_heads = _inference(family).kv_heads
    return model_from_shape(
        layers=layers,
        hidden=hidden,
        heads=heads or 1,
        vocab=partial.vocab,
        family=family,
        kv_heads=kv_heads if kv_heads and heads and heads % kv_heads == 0 else None,
        max_positions=partial.positions,
        activation=partial.activation,
    )


def _candidates(count: int, family: str, partial: PartialShape) -> list[Model]:
    """Models of one width with the numbers of layers to compare."""
    hidden = partial.hidden or 1
    if partial.layers is not None:
        return [_model(partial.layers, hidden, family, partial)]
    single = _model(1, hidden, family, partial)
    block = single.groups[0].block.parameters
    exact = (count - (single.parameter_count - block)) / block
    if not 0 < exact <= _MAXIMUM_LAYERS:
        return []
    rounded = {math.floor(exact), math.ceil(exact)} | {step * round(exact / step) for step in (2, 4, 8)}
    return [_model(layers, hidden, family, partial) for layers in sorted(rounded) if 1 <= layers <= _MAXIMUM_LAYERS]


def _widths_for_layers(count: int, family: str, partial: PartialShape, layers: int) -> list[int]:
    """Widths near the one at which this number of layers has the count, by bisection."""
    step = partial.heads or 64
    low, high = 1, 2**14
    while low < high:
        middle = (low + high) // 2
        heads = replace(partial, heads=partial.heads or 1)
        if _model(layers, middle * step, family, heads).parameter_count < count:
            low = middle + 1
        else:
            high = middle
    return sorted({max(1, k) * step for k in range(low - 4, low + 3)})


def _cost(model: Model, count: int, family: str) -> float:
    """Lower is better. A count more than 1 % off weighs most, then the width, then the roundness of the layers."""
    layers, hidden = model.shape.layers, model.shape.hidden
    deviation = max(0.0, abs(model.parameter_count / count - 1) - 0.01)
    roundness = next((cost for step, cost in ((8, 0.0), (4, 0.01), (2, 0.02)) if layers % step == 0), 0.05)
    return 15 * deviation + abs(math.log(hidden / interpolated_hidden(count, family))) + roundness
