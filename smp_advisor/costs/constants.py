"""The cost model's constants, read once from their dated table."""

from __future__ import annotations

import tomllib
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Constant", "constant", "constants", "fp32_peak_tflops", "gpu_constant", "overriding"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Constant:
    """One figure with where it comes from."""

    name: str
    """Dotted: ``memory.context_gib``; ``gpu.matmul_efficiency.A100`` where it depends on the GPU."""
    value: float
    source: str
    date: str
    assumed: bool
    """True where no measurement settles it; shown to users as assumed."""
    prior: float | None = None
    """Where the fit to published runs starts and is held near; None for what is not fitted."""
    spread: float = 0.0
    """One standard deviation of the logarithm of a fitted value about its prior."""


@cache
def _table() -> dict[str, dict[str, dict[str, object]]]:
    text = resources.files("smp_advisor.costs").joinpath("data/constants.toml").read_text("utf-8")
    return tomllib.loads(text)


def _constants() -> Iterator[Constant]:
    for room, entries in _table().items():
        if room == "fp32_peak_tflops":
            continue
        for name, entry in entries.items():
            values = entry["values"] if room == "gpu" else {"": entry["value"]}
            for gpu, value in values.items():  # type: ignore[attr-defined]
                yield Constant(
                    name=".".join(filter(None, (room, name, gpu))),
                    value=float(value),
                    source=str(entry["source"]),
                    date=str(entry["date"]),
                    assumed=bool(entry["assumed"]) or gpu in entry.get("assumed_for", ()),  # type: ignore[operator]
                    prior=float(entry["prior"]) if "prior" in entry else None,  # type: ignore[arg-type]
                    spread=float(entry.get("spread", 0.0)),  # type: ignore[arg-type]
                )


@cache
def constants() -> dict[str, Constant]:
    """Every constant by its dotted name."""
    return {one.name: one for one in _constants()}


@cache
def _values() -> dict[str, float]:
    return {name: one.value for name, one in constants().items()}


def constant(name: str) -> float:
    """The value of one constant, ``constant("memory.context_gib")``."""
    return _values()[name]


def gpu_constant(name: str, gpu: str) -> float:
    """The value of a constant that depends on the GPU, ``gpu_constant("matmul_efficiency", "NVIDIA A100 80GB")``.

    A GPU that the table does not name has the value of ``other``.
    """
    values = _values()
    return values.get(f"gpu.{name}.{_generation(name, gpu)}", values[f"gpu.{name}.other"])


@cache
def _generation(name: str, gpu: str) -> str:
    known = {entry.split(".")[2] for entry in constants() if entry.startswith(f"gpu.{name}.")}
    return next((word for word in gpu.replace("-", " ").split() if word in known), "other")


@contextmanager
def overriding(values: Mapping[str, float]) -> Iterator[None]:
    """Other values for some constants within a block: for fitting them and for asking how much they matter."""
    unknown = sorted(set(values) - set(_values()))
    if unknown:
        raise KeyError(f"no constant {unknown[0]!r}")
    kept = {name: _values()[name] for name in values}
    _values().update(values)
    try:
        yield
    finally:
        _values().update(kept)


def fp32_peak_tflops(gpu: str, half_peak_tflops: float) -> float:
    """Dense fp32 peak of a GPU by name, in TFLOPS; a sixteenth of the half-precision peak where it is not listed."""
    entry = _table()["fp32_peak_tflops"]
    values: dict[str, float] = entry["values"]  # type: ignore[assignment]
    for token in gpu.replace("-", " ").split():
        if token in values:
            return values[token]
    return half_peak_tflops * float(entry["fallback_share_of_half"])  # type: ignore[arg-type]
