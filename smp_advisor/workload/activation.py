"""Activation functions by their transformers names: what each keeps for its backward pass."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from smp_advisor.errors import ModelError

__all__ = ["Activation", "activation"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Activation:
    """Cost of one activation function, in elements per element of its output."""

    name: str
    kept: int
    """Kept beyond the output, which the next product keeps: 1 for GELU (its input), 0 for ReLU (its output serves)."""
    unfused_kept: int
    """Kept on top when it runs as separate operations (``gelu_new``: tanh, cube and their products)."""
    traffic: int
    """Read and written by the fused form."""
    unfused_traffic: int
    """Read and written on top when it runs as separate operations."""


@cache
def _activations() -> dict[str, Activation]:
    with (files("smp_advisor.workload") / "data" / "activations.csv").open(encoding="utf-8") as table:
        rows = list(csv.DictReader(table))
    return {
        row["name"]: Activation(
            name=row["name"],
            kept=int(row["kept"]),
            unfused_kept=int(row["unfused_kept"]),
            traffic=int(row["traffic"]),
            unfused_traffic=int(row["unfused_traffic"]),
        )
        for row in rows
    }


def activation(name: object) -> Activation:
    """Activation function by the name a transformers configuration gives it."""
    known = _activations()
    if not isinstance(name, str) or name not in known:
        raise ModelError(f"Unknown activation function {name!r}; known are {', '.join(known)}.")
    return known[name]
