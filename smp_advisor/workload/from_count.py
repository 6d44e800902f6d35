"""A model from its size: the shape of a published model of that size, else an interpolated shape."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from smp_advisor.errors import ModelError
from smp_advisor.workload.counts import check_sizes, format_count, parse_count
from smp_advisor.workload.family import families
from smp_advisor.workload.family import family as family_of
from smp_advisor.workload.from_shape import model_from_shape
from smp_advisor.workload.inference import PartialShape, activation_band, infer_shape
from smp_advisor.workload.published import nearest_published

if TYPE_CHECKING:
    from smp_advisor.workload.family import Family
    from smp_advisor.workload.model import Model
    from smp_advisor.workload.published import PublishedShape

__all__ = ["model_from_count", "padded_vocabulary"]

_VOCABULARY_MULTIPLE = 128
"""Megatron-LM pads vocabularies to a multiple of this, so that products with them use tensor cores and tensor
parallelism divides them (its option ``--make-vocab-size-divisible-by``)."""

_POSITIONS = 2048
_MAX_DEVIATION = 0.03
"""A larger deviation of the shape from the count is reported in the note."""


def padded_vocabulary(words: int) -> int:
    """Rows of a token table for a number of words.

    Examples
    --------
    >>> padded_vocabulary(50257)
    50304
    """
    return -(-words // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE


def model_from_count(
    count: float | str,
    *,
    family: str,
    layers: int | None,
    hidden: int | None,
    heads: int | None,
    vocab: int | None,
    sequence_length: int | None,
    activation: str | None,
    name: str | None,
) -> Model:
    """Model of about `count` parameters; see `Model.from_parameters`."""
    facts = family_of(family, source="family")
    if facts.inference is None:
        supported = " and ".join(name for name, entry in families().items() if entry.inference)
        raise ModelError(
            f"A shape can be inferred for the families {supported}, not {family!r}: "
            "pass its shape to Model.from_shape or its configuration to Model.from_config."
        )
    target = parse_count(count)
    check_sizes(layers=layers, hidden=hidden, heads=heads, vocab=vocab, sequence_length=sequence_length)
    if layers is hidden is heads is None:
        published = nearest_published(target, gated=facts.gated)
        if published is not None:
            model = _as_published(target, published, facts, vocab, sequence_length, activation, name)
            # With another vocabulary or more positions, a small model may be far from the count.
            if abs(model.parameter_count / target - 1) <= 2 * _MAX_DEVIATION:
                return model
    partial = PartialShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        vocab=vocab or facts.inference.vocab,
        positions=max(sequence_length or 0, _POSITIONS),
        activation=activation,
    )
    model = infer_shape(target, family, partial)
    return dataclasses.replace(
        model,
        name=name or f"{facts.label} {format_count(target)}",
        origin="inferred",
        # The number of layers and the width determine the activations.
        activation_band=0.0 if partial.layers and partial.hidden else activation_band(target, family),
        note=f"inferred from {format_count(target)}; {_how(model, target, family, partial)}",
    )


def _how(model: Model, target: int, family: str, partial: PartialShape) -> str:
    """Origin of the shape, and its error."""
    fixed = [field for field in ("layers", "hidden", "heads") if getattr(partial, field) is not None]
    band = f"±{100 * activation_band(target, family):.0f} %"
    if not fixed:
        return f"hidden size interpolated between published models, activation memory {band}"
    if abs(model.parameter_count / target - 1) > _MAX_DEVIATION:
        return f"{' and '.join(fixed)} given, which result in {format_count(model.parameter_count)}"
    return f"{' and '.join(fixed)} given, the rest from the count, activation memory {band}"


def _as_published(
    target: int,
    published: PublishedShape,
    facts: Family,
    vocab: int | None,
    sequence_length: int | None,
    activation: str | None,
    name: str | None,
) -> Model:
    model = model_from_shape(
        layers=published.layers,
        hidden=published.hidden,
        heads=published.heads,
        vocab=vocab or padded_vocabulary(published.vocab),
        family=facts.model_type,
        kv_heads=published.kv_heads if facts.gated else None,
        ffn=published.ffn,
        max_positions=max(published.positions, sequence_length or 0),
        tied=published.tied if facts.gated else None,
        activation=activation,
        name=name or published.name,
    )
    band = activation_band(target, facts.model_type)
    return dataclasses.replace(
        model,
        origin="inferred",
        activation_band=band,
        note=f"inferred from {format_count(target)}; the shape of {published.name} "
        f"({format_count(published.parameters)}), activation memory ±{100 * band:.0f} % if yours differs",
    )
