"""The cost model's constants, read once from their dated table."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources

__all__ = ["Constant", "constant", "constants", "fp32_peak_tflops"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Constant:
    """One figure with where it comes from."""

    name: str
    """Dotted: ``memory.context_gib``."""
    value: float
    source: str
    date: str
    assumed: bool
    """True where no measurement settles it; shown to users as assumed."""


@cache
def _table() -> dict[str, dict[str, dict[str, object]]]:
    text = resources.files("smp_advisor.costs").joinpath("data/constants.toml").read_text("utf-8")
    return tomllib.loads(text)


@cache
def constants() -> dict[str, Constant]:
    """Every constant by its dotted name."""
    return {
        f"{room}.{name}": Constant(
            name=f"{room}.{name}",
            value=float(entry["value"]),  # type: ignore[arg-type]
            source=str(entry["source"]),
            date=str(entry["date"]),
            assumed=bool(entry["assumed"]),
        )
        for room, entries in _table().items()
        if room != "fp32_peak_tflops"
        for name, entry in entries.items()
    }


@cache
def constant(name: str) -> float:
    """The value of one constant, ``constant("memory.context_gib")``."""
    return constants()[name].value


def fp32_peak_tflops(gpu: str, half_peak_tflops: float) -> float:
    """Dense fp32 peak of a GPU by name, in TFLOPS; a sixteenth of the half-precision peak where it is not listed."""
    entry = _table()["fp32_peak_tflops"]
    values: dict[str, float] = entry["values"]  # type: ignore[assignment]
    for token in gpu.replace("-", " ").split():
        if token in values:
            return values[token]
    return half_peak_tflops * float(entry["fallback_share_of_half"])  # type: ignore[arg-type]
