"""Habits of a training library that the other columns of a row do not describe."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .table import Row

__all__ = ["Habits", "habits", "public_settings"]


@dataclass(frozen=True, slots=True)
class Habits:
    """Habits of one library. The defaults are those of an unlisted library."""

    logit_bytes: float | None = None
    """Bytes of a logit and its loss at the start of the backward pass."""
    gathers_logits: bool = False
    """Whether every GPU of a tensor-parallel group has all logits."""
    accumulates_unsharded: bool = False
    """Whether gradients of sharded parameters stay undivided until the last microbatch."""
    default_optimizer: Literal["", "paged-in-backward"] = ""
    """Optimizer of the library's recipe, for rows that refer to it."""
    double_quantization: bool = False
    """Whether the scales of a 4-bit base are quantized as well."""
    all_linear: tuple[str, ...] = ()
    """Words in the names of models whose recipes adapt every product; others adapt queries and values."""
    gathered_units: int = 2
    """Units of FSDP that are gathered at a time: the running one, and with prefetching the next."""
    divides_sequence: bool = True
    """Whether tensor parallelism of a recent library also divides the sequence."""
    pretrains: bool = False
    """Whether an encoder has the head of its pre-training, with a vocabulary padded to a multiple of 8."""
    reduces_late: bool = False
    """Whether gradients are reduced after the backward pass."""
    upcast: bool = False
    """Whether PEFT's preparation casts unquantized parameters to fp32, if no parameter is sharded."""
    loss_in_16_bits: tuple[str, ...] = ()
    """Words in the names of models whose loss reads the 16-bit logits."""
    root_units: bool = False
    """Whether embedding and head are gathered and freed separately."""


@cache
def _entries() -> tuple[tuple[str, Habits, Mapping[str, Any]], ...]:
    text = (Path(__file__).parent / "data" / "frameworks.toml").read_text(encoding="utf-8")
    return tuple(
        (
            str(entry["pattern"]),
            Habits(**{name: _hashable(entry[name]) for name in Habits.__dataclass_fields__ if name in entry}),
            MappingProxyType(entry.get("job", {})),
        )
        for entry in tomllib.loads(text)["framework"]
    )


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _name(row: Row) -> str:
    return f"{row.text('framework')}, {row.text('source')}"


def habits(row: Row) -> Habits:
    """Habits of the library in a row."""
    name = _name(row)
    return next((entry for pattern, entry, _ in _entries() if pattern in name), Habits())


def public_settings(row: Row) -> Mapping[str, Any]:
    """The same habits as fields of `Job`, as far as it has them."""
    name = _name(row)
    return next((settings for pattern, _, settings in _entries() if pattern in name), MappingProxyType({}))
