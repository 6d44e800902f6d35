"""A model from its size: the shape of a published model of that size, else an interpolated shape."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from smp_advisor.core.files import columns, rows, sentence
from smp_advisor.errors import ModelError
from smp_advisor.workload.counts import MAX_LAYERS, check_sizes, format_count, parse_count
from smp_advisor.workload.families import model_from_shape
from smp_advisor.workload.settings import families
from smp_advisor.workload.settings import family as family_of

if TYPE_CHECKING:
    from smp_advisor.workload.model import Model
    from smp_advisor.workload.settings import Family, Inference


_TOLERANCE = 0.03


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedShape:
    name: str
    series: str
    """Models published together: ``GPT-3``, ``Llama 2``, ..."""
    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    positions: int
    """Context length in tokens."""
    tied: bool
    """Whether the output weight is the token table."""
    parameters: int
    """Counted from the shape, with tied weights counted once."""
    source: str

    @property
    def gated(self) -> bool:
        """Whether its blocks are Llama's (gated feed-forward layer) rather than GPT's."""
        return families()[self.family].gated


@cache
def published_shapes() -> tuple[PublishedShape, ...]:
    return tuple(
        PublishedShape(**columns(PublishedShape, row))
        for row in rows("smp_advisor.workload", "data/published_shapes.csv")
    )


def nearest_published(count: int, *, gated: bool) -> PublishedShape | None:
    """Published model with the same form of block and nearly the same size. None if none is within 3 %."""
    candidates = [
        shape
        for shape in published_shapes()
        if shape.gated == gated
        and (gated or (shape.kv_heads == shape.heads and shape.ffn == 4 * shape.hidden and shape.vocab < 100_000))
        and abs(shape.parameters / count - 1) <= _TOLERANCE
    ]
    return min(
        candidates,
        key=lambda shape: (families()[shape.family].inference is None, abs(shape.parameters / count - 1)),
        default=None,
    )


_SMALLER = 0.95
"""Least size of an inferred model, as a share of the smallest published one."""


@dataclass(frozen=True, slots=True)
class PartialShape:
    """Fixed parts of the shape. None: to be inferred, or that of the family."""

    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    vocab: int | None = None
    positions: int | None = None
    activation: str | None = None


@lru_cache(maxsize=256)
def infer_shape(count: int, family: str, partial: PartialShape) -> Model:
    if partial.hidden is not None:
        widths = [partial.hidden]
    elif partial.layers is not None:
        widths = _widths_for_layers(count, family, partial, partial.layers)
    else:
        target = interpolated_hidden(count, family)
        # Larger models use rounder sizes.
        step = next(step for least, step in ((8e9, 1024), (3e9, 512), (3e8, 256), (0, 64)) if count > least)
        widths = sorted({max(step, int(target // step) * step + k * step) for k in range(-2, 4)})
    if partial.heads is not None:
        widths = [width for width in widths if width % partial.heads == 0]
        if not widths:
            near = interpolated_hidden(count, family)
            raise ModelError(sentence("workload", "no_multiple", near=near, heads=partial.heads))
    candidates = [
        candidate for width in widths for candidate in _candidates(count, family, replace(partial, hidden=width))
    ]
    if not candidates:
        values = {"count": format_count(count), "most": MAX_LAYERS, "widths": widths, "vocab": partial.vocab}
        raise ModelError(sentence("workload", "no_shape", **values, last=widths[-1]))
    return min(candidates, key=lambda candidate: _cost(candidate, count, family))


def activation_band(count: int, family: str) -> float:
    """Relative error of activation memory for nine of ten inferred shapes; see the module's figures."""
    inference = _inference(family)
    return inference.activation_error if count >= 1e9 else inference.activation_error_below_1b


def can_be_inferred(count: int, family: str) -> bool:
    """Return whether a family has published models about as small: the vocabulary must leave room for layers."""
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
    hidden = partial.hidden or 1
    if partial.layers is not None:
        return [_model(partial.layers, hidden, family, partial)]
    single = _model(1, hidden, family, partial)
    block = single.groups[0].block.parameters
    exact = (count - (single.parameter_count - block)) / block
    if not 0 < exact <= MAX_LAYERS:
        return []
    rounded = {math.floor(exact), math.ceil(exact)} | {step * round(exact / step) for step in (2, 4, 8)}
    return [_model(layers, hidden, family, partial) for layers in sorted(rounded) if 1 <= layers <= MAX_LAYERS]


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


_VOCABULARY_MULTIPLE = 128
"""Megatron-LM pads vocabularies to a multiple of this, so that products with them use tensor cores and tensor
parallelism divides them (its option ``--make-vocab-size-divisible-by``)."""

_POSITIONS = 2048
_MAX_DEVIATION = 0.03
"""A larger deviation of the shape from the count is reported in the note."""


def model_from_count(count: float | str, family: str | None, fixed: PartialShape, name: str | None) -> Model:
    """Model of about `count` parameters; see `Model.from_parameters`."""
    target = parse_count(count)
    family = family or ("llama" if can_be_inferred(target, "llama") else "gpt2")
    facts = family_of(family, source="family")
    if facts.inference is None:
        supported = " and ".join(name for name, entry in families().items() if entry.inference)
        raise ModelError(sentence("workload", "not_inferred", supported=supported, family=family))
    sizes = {field: getattr(fixed, field) for field in ("layers", "hidden", "heads", "vocab")}
    check_sizes(**sizes, sequence_length=fixed.positions)
    if fixed.layers is fixed.hidden is fixed.heads is None:
        published = nearest_published(target, gated=facts.gated)
        if published is not None:
            model = _as_published(target, published, facts, fixed, name)
            # With another vocabulary or more positions, a small model may be far from the count.
            if abs(model.parameter_count / target - 1) <= 2 * _MAX_DEVIATION:
                return model
    vocab, positions = fixed.vocab or facts.inference.vocab, max(fixed.positions or 0, _POSITIONS)
    model = infer_shape(target, family, replace(fixed, vocab=vocab, positions=positions))
    return replace(
        model,
        name=name or f"{facts.label} {format_count(target)}",
        origin="inferred",
        # The number of layers and the width determine the activations.
        activation_band=0.0 if fixed.layers and fixed.hidden else activation_band(target, family),
        note=f"inferred from {format_count(target)}; {_how(model, target, family, fixed)}",
    )


def _how(model: Model, target: int, family: str, partial: PartialShape) -> str:
    fixed = [field for field in ("layers", "hidden", "heads") if getattr(partial, field) is not None]
    band = f"±{100 * activation_band(target, family):.0f} %"
    if not fixed:
        return f"hidden size interpolated between published models, activation memory {band}"
    if abs(model.parameter_count / target - 1) > _MAX_DEVIATION:
        return f"{' and '.join(fixed)} given, which result in {format_count(model.parameter_count)}"
    return f"{' and '.join(fixed)} given, the rest from the count, activation memory {band}"


def _as_published(
    target: int, published: PublishedShape, facts: Family, fixed: PartialShape, name: str | None
) -> Model:
    model = model_from_shape(
        layers=published.layers,
        hidden=published.hidden,
        heads=published.heads,
        vocab=fixed.vocab or -(-published.vocab // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE,
        family=facts.model_type,
        kv_heads=published.kv_heads if facts.gated else None,
        ffn=published.ffn,
        max_positions=max(published.positions, fixed.positions or 0),
        tied=published.tied if facts.gated else None,
        activation=fixed.activation,
        name=name or published.name,
    )
    band = activation_band(target, facts.model_type)
    return replace(
        model,
        origin="inferred",
        activation_band=band,
        note=f"inferred from {format_count(target)}; the shape of {published.name} "
        f"({format_count(published.parameters)}), activation memory ±{100 * band:.0f} % if yours differs",
    )
