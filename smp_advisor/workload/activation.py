"""Activation functions by their transformers names, with the memory each one saves for its backward pass."""

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
    saved: int
    """Saved in addition to the output, which the next product saves: 1 for GELU (its input), 0 for ReLU."""
    unfused_saved: int
    """Saved in addition when it runs as separate operations (``gelu_new``: tanh, cube and their products)."""
    traffic: int
    """Read and written by the fused form."""
    unfused_traffic: int
    """Read and written in addition when it runs as separate operations."""

    @property
    def unfused_launches(self) -> int:
        """Kernels in addition to one. An operation reads and writes two elements, or three with two inputs."""
        return round(self.unfused_traffic / 2.3)


@cache
def _activations() -> dict[str, Activation]:
    with (files("smp_advisor.workload") / "data" / "activations.csv").open(encoding="utf-8") as table:
        rows = list(csv.DictReader(table))
    return {
        row["name"]: Activation(name=row["name"], **{key: int(value) for key, value in row.items() if key != "name"})
        for row in rows
    }


def activation(name: object) -> Activation:
    """Activation function by its name in a transformers configuration."""
    functions = _activations()
    if not isinstance(name, str) or name not in functions:
        raise ModelError(f"Unknown activation function {name!r}; supported are {', '.join(functions)}.")
    return functions[name]
