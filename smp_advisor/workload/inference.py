"""The shape of a transformer from its size alone.

The hidden size is interpolated, in logarithms, between published models; the number of layers follows from the count.
Leaving out one published model at a time (and its equals), that misses its layers times hidden size, hence its
checkpoints, by 2 % in the median and 23 % at most for the 35 GPT models of a billion parameters and more, by 50 % at
most for the smaller ones, and by 13 % in the median and 37 % in nine cases of ten for the 13 Llama models, whose
vocabularies and ties differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from smp_advisor.errors import ModelError
from smp_advisor.workload.counts import format_count
from smp_advisor.workload.from_shape import model_from_shape
from smp_advisor.workload.published import published_shapes

if TYPE_CHECKING:
    from smp_advisor.workload.model import Model

__all__ = ["Known", "activation_band", "infer_shape", "interpolated_hidden"]

_SERIES = {"gpt2": ("GPT-3", "Megatron-LM", "OPT", "GPT-NeoX", "BLOOM"), "llama": ("Llama", "Llama 2", "Llama 3")}
_MAXIMUM_LAYERS = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """What is known of the shape besides the count; None is to be found."""

    layers: int | None
    hidden: int | None
    heads: int | None
    vocab: int
    positions: int


def infer_shape(count: int, family: str, known: Known) -> Model:
    """Model of about `count` parameters with what is known held."""
    if known.hidden is not None:
        widths = [known.hidden]
    elif known.layers is not None:
        widths = _widths_for_layers(count, family, known, known.layers)
    else:
        target = interpolated_hidden(count, family)
        step = _step(count)
        widths = sorted({max(step, int(target // step) * step + k * step) for k in range(-2, 4)})
    if known.heads is not None:
        widths = [width for width in widths if width % known.heads == 0]
        if not widths:
            raise ModelError(
                f"No hidden size near {interpolated_hidden(count, family):,.0f} is a multiple of {known.heads} heads: "
                "give hidden too, a multiple of them."
            )
    candidates = [
        candidate for width in widths for candidate in _candidates(count, family, replace(known, hidden=width))
    ]
    if not candidates:
        raise ModelError(
            f"{format_count(count)} parameters cannot be made of 1 to {_MAXIMUM_LAYERS:,} layers of hidden size "
            f"{widths[0]} to {widths[-1]} beside a vocabulary of {known.vocab:,}: pass another vocab or hidden."
        )
    return min(candidates, key=lambda candidate: _badness(candidate, count, family))


def activation_band(count: int, family: str) -> float:
    """Relative error that activation memory stays within for nine of ten inferred shapes; see the module's figures."""
    if family == "llama":
        return 0.40
    return 0.25 if count >= 1e9 else 0.50


def interpolated_hidden(count: int, family: str) -> float:
    """Hidden size that published models of this form have at this size, log-log interpolation."""
    points: list[tuple[float, float]] = []
    for shape in sorted(published_shapes(), key=lambda shape: shape.parameters):
        if shape.series not in _SERIES[family]:
            continue
        point = (math.log(shape.parameters), math.log(shape.hidden))
        if points and point[0] - points[-1][0] < math.log(1.03):
            # The same size twice: keep the mean, so that no segment is almost vertical.
            point = ((points[-1][0] + point[0]) / 2, (points[-1][1] + point[1]) / 2)
            points.pop()
        points.append(point)
    x = math.log(count)
    place = next((i for i in range(1, len(points) - 1) if x <= points[i][0]), len(points) - 1)
    (x0, y0), (x1, y1) = points[place - 1], points[place]
    return math.exp(y0 + (y1 - y0) * (x - x0) / (x1 - x0))


def _step(count: int) -> int:
    """Hidden sizes are multiples of this: larger models use rounder ones."""
    if count > 8e9:
        return 1024
    if count > 3e9:
        return 512
    return 256 if count > 3e8 else 64


def _heads(hidden: int) -> int | None:
    """Heads for a width: about 128 wide (64 below 2048), eight or a multiple if any, so that 2, 4 and 8 divide them."""
    wanted = 128 if hidden >= 2048 else 64
    choices = [heads for heads in range(1, hidden // 32 + 1) if hidden % heads == 0]
    return min(
        choices or [1],
        key=lambda heads: (heads % 8 != 0, hidden // heads % 8 != 0, abs(math.log(hidden / heads / wanted)), heads),
    )


def _model(layers: int, hidden: int, family: str, known: Known) -> Model:
    heads = known.heads or _heads(hidden)
    # Llama 3 has 8 key-value heads throughout.
    grouped = family == "llama" and heads is not None and heads % 8 == 0
    return model_from_shape(
        layers=layers,
        hidden=hidden,
        heads=heads or 1,
        vocab=known.vocab,
        family=family,
        kv_heads=8 if grouped else None,
        ffn=None,
        max_positions=known.positions,
        tied=None,
        experts=None,
        experts_per_token=None,
        name=None,
    )


def _candidates(count: int, family: str, known: Known) -> list[Model]:
    """Models of one width with the numbers of layers worth comparing."""
    hidden = known.hidden or 1
    if known.layers is not None:
        return [_model(known.layers, hidden, family, known)]
    one = _model(1, hidden, family, known)
    block = one.groups[0].block.parameters
    exact = (count - (one.parameter_count - block)) / block
    if not 0 < exact <= _MAXIMUM_LAYERS:
        return []
    rounded = {math.floor(exact), math.ceil(exact)} | {step * round(exact / step) for step in (2, 4, 8)}
    return [_model(layers, hidden, family, known) for layers in sorted(rounded) if 1 <= layers <= _MAXIMUM_LAYERS]


def _widths_for_layers(count: int, family: str, known: Known, layers: int) -> list[int]:
    """Widths around the one at which so many layers have the count, by bisection."""
    step = known.heads or 64
    low, high = 1, 2**14
    while low < high:
        middle = (low + high) // 2
        heads = replace(known, heads=known.heads or 1)
        if _model(layers, middle * step, family, heads).parameter_count < count:
            low = middle + 1
        else:
            high = middle
    return sorted({max(1, k) * step for k in range(low - 4, low + 3)})


def _badness(model: Model, count: int, family: str) -> float:
    """Less is better: parameters beyond 1 % off weigh most, then the width, then how round the layers are."""
    layers, hidden = model.shape.layers, model.shape.hidden
    off = max(0.0, abs(model.parameter_count / count - 1) - 0.01)
    roundness = next((cost for step, cost in ((8, 0.0), (4, 0.01), (2, 0.02)) if layers % step == 0), 0.05)
    return 15 * off + abs(math.log(hidden / interpolated_hidden(count, family))) + roundness
