"""Shapes of published models, from their papers."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from smp_advisor.workload.family import families

__all__ = ["PublishedShape", "nearest_published", "published_shapes"]

_TOLERANCE = 0.03
_COUNTS = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "positions", "parameters")


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedShape:
    """One published decoder."""

    name: str
    series: str
    """Models published together: ``GPT-3``, ``Llama 2``, ..."""
    family: str
    """The transformers ``model_type``."""
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
    """Every published shape, in the order of the table."""
    with (files("smp_advisor.workload") / "data" / "published_shapes.csv").open(encoding="utf-8") as table:
        return tuple(
            PublishedShape(
                name=row["name"],
                series=row["series"],
                family=row["family"],
                tied=row["tied"] == "yes",
                source=row["source"],
                **{column: int(row[column]) for column in _COUNTS},
            )
            for row in csv.DictReader(table)
        )


def nearest_published(count: int, *, gated: bool) -> PublishedShape | None:
    """Published model with the same form of block and nearly the same size. None if none is within 3 %.

    For the GPT form, models with GPT-2's layout are preferred. Models with grouped queries, other feed-forward widths,
    or a vocabulary several times GPT-2's (a tenth of a 7 B model or more) are excluded.
    """
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
