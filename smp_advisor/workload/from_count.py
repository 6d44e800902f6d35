"""A model of a given size: a published model's shape if one is that size, else an interpolated one."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from smp_advisor.errors import ModelError
from smp_advisor.workload.counts import check_sizes, format_count, parse_count
from smp_advisor.workload.family import family as family_of
from smp_advisor.workload.from_shape import model_from_shape
from smp_advisor.workload.inference import Known, activation_band, infer_shape
from smp_advisor.workload.published import nearest_published

if TYPE_CHECKING:
    from smp_advisor.workload.model import Model
    from smp_advisor.workload.published import PublishedShape

__all__ = ["model_from_count"]

_FAMILIES = ("gpt2", "llama")
_POSITIONS = 2048
_FAR = 0.03
"""From this deviation on, a person is told that the shape misses the count."""
_VOCABULARIES = {"gpt2": 50257, "llama": 128256}
"""GPT-2's and Llama 3's tokenizers."""


def model_from_count(
    count: float | str,
    *,
    family: str,
    layers: int | None,
    hidden: int | None,
    heads: int | None,
    vocab: int | None,
    sequence_length: int | None,
    name: str | None,
) -> Model:
    """Model of about `count` parameters; see `Model.from_parameters`."""
    if family not in _FAMILIES:
        family_of(family, source="family")
        raise ModelError(
            f"A shape can be inferred for the families {' and '.join(_FAMILIES)}, not {family!r}: "
            "give its shape with Model.from_shape or its configuration with Model.from_config."
        )
    wanted = parse_count(count)
    check_sizes(layers=layers, hidden=hidden, heads=heads, vocab=vocab, sequence_length=sequence_length)
    if layers is hidden is heads is None:
        published = nearest_published(wanted, gated=family == "llama")
        if published is not None:
            model = _as_published(wanted, published, family, vocab, sequence_length, name)
            # With another vocabulary or more positions, a small model may be far from the count.
            if abs(model.parameter_count / wanted - 1) <= 2 * _FAR:
                return model
    known = Known(
        layers=layers,
        hidden=hidden,
        heads=heads,
        vocab=vocab or _VOCABULARIES[family],
        positions=max(sequence_length or 0, _POSITIONS),
    )
    model = infer_shape(wanted, family, known)
    return dataclasses.replace(
        model,
        name=name or f"{family_of(family).label} {format_count(wanted)}",
        origin="inferred",
        # Layers and width given leave nothing of the activations to be inferred.
        activation_band=0.0 if known.layers and known.hidden else activation_band(wanted, family),
        note=f"inferred from {format_count(wanted)}; {_how(model, wanted, family, known)}",
    )


def _how(model: Model, wanted: int, family: str, known: Known) -> str:
    """How the shape came about, and how far to trust it."""
    given = [field for field in ("layers", "hidden", "heads") if getattr(known, field) is not None]
    band = f"±{100 * activation_band(wanted, family):.0f} %"
    if not given:
        return f"hidden size interpolated between published models, activation memory {band}"
    if abs(model.parameter_count / wanted - 1) > _FAR:
        return f"{' and '.join(given)} given, which make {format_count(model.parameter_count)}"
    return f"{' and '.join(given)} given, the rest from the count, activation memory {band}"


def _as_published(
    wanted: int,
    published: PublishedShape,
    family: str,
    vocab: int | None,
    sequence_length: int | None,
    name: str | None,
) -> Model:
    model = model_from_shape(
        layers=published.layers,
        hidden=published.hidden,
        heads=published.heads,
        vocab=vocab or published.vocab,
        family=family,
        kv_heads=published.kv_heads if family == "llama" else None,
        ffn=published.ffn,
        max_positions=max(published.positions, sequence_length or 0),
        tied=published.tied if family == "llama" else None,
        experts=None,
        experts_per_token=None,
        name=name or published.name,
    )
    return dataclasses.replace(
        model,
        origin="inferred",
        activation_band=activation_band(wanted, family),
        note=f"inferred from {format_count(wanted)}; the shape of {published.name} "
        f"({format_count(published.parameters)}), activation memory ±{100 * activation_band(wanted, family):.0f} % "
        "if yours differs",
    )
