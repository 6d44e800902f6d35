"""Defaults of a training library that the other columns of a row do not describe."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from .table import Row

__all__ = ["Habits", "habits"]


@dataclass(frozen=True, slots=True)
class Habits:
    """Habits of one library; the defaults are those of one that is not listed."""

    logit_bytes: float | None = None
    """A logit and its loss at the start of the backward pass."""
    accumulates_unsharded: bool = False
    """Whether gradients of sharded parameters stay unsharded until the last microbatch."""
    default_optimizer: Literal["", "paged-in-backward"] = ""
    """Optimizer of the library's recipe, for rows that give none."""
    double_quantization: bool = False
    """Whether the scales of a 4-bit base are quantized as well."""
    root_units: bool = False
    """Whether embedding and head are gathered and freed on their own."""


@cache
def _entries() -> tuple[tuple[str, Habits], ...]:
    text = (Path(__file__).parent / "data" / "frameworks.toml").read_text(encoding="utf-8")
    return tuple(
        (
            str(entry["pattern"]),
            Habits(**{name: entry[name] for name in Habits.__dataclass_fields__ if name in entry}),
        )
        for entry in tomllib.loads(text)["framework"]
    )


def habits(row: Row) -> Habits:
    """Habits of the library that a row names."""
    name = row.text("framework")
    return next((found for pattern, found in _entries() if pattern in name), Habits())
