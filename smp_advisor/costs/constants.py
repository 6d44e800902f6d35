"""The constants of the cost model, from their dated table, and the peak rates of one GPU."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from smp_advisor.core.files import data_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from smp_advisor.cluster.table import Instance
    from smp_advisor.core.elementwise import Floats
    from smp_advisor.workload.job import Job


@dataclass(frozen=True, kw_only=True, slots=True)
class Constant:
    name: str
    """Dotted name: ``memory.context_gib``, or ``gpu.matmul_efficiency.A100`` if it depends on the GPU."""
    value: float
    source: str
    date: str
    assumed: bool
    """Whether no measurement confirms it. Users see it as assumed."""
    prior: float | None = None
    """Prior of the fit to published runs; None if the constant is not fitted."""
    spread: float = 0.0
    """One standard deviation of the logarithm of a fitted value about its prior."""


@cache
def constants() -> dict[str, Constant]:
    table: dict[str, Constant] = {}
    for group, entries in data_file("costs", "constants").items():
        if group == "fp32_peak_tflops":
            continue
        for name, entry in entries.items():
            values = entry["values"] if group == "gpu" else {"": entry["value"]}
            priors = entry.get("priors", {})
            for gpu, value in values.items():
                prior = priors.get(gpu, entry.get("prior"))
                dotted = ".".join(filter(None, (group, name, gpu)))
                table[dotted] = Constant(
                    name=dotted,
                    value=float(value),
                    source=str(entry["source"]),
                    date=str(entry["date"]),
                    assumed=bool(entry["assumed"]) or gpu in entry.get("assumed_for", ()),
                    prior=None if prior is None else float(prior),
                    spread=float(entry.get("spread", 0.0)),
                )
    return table


@cache
def _committed() -> dict[str, Floats]:
    return {entry.name: entry.value for entry in constants().values()}


_OVERRIDDEN: ContextVar[dict[str, Floats] | None] = ContextVar("_OVERRIDDEN", default=None)
"""All values inside `overriding`, which other threads do not see."""


def constant(name: str) -> Floats:
    """Return the value of one constant, ``constant("memory.context_gib")``."""
    return (_OVERRIDDEN.get() or _committed())[name]


def are_overridden() -> bool:
    """Return whether the code runs inside `overriding`."""
    return _OVERRIDDEN.get() is not None


def gpu_constant(name: str, gpu: str) -> Floats:
    """Value of a constant that depends on the GPU; one that is not in the table has the value of ``other``."""
    return constant(f"gpu.{name}.{_generation(name, gpu)}")


def has_gpu_constant(name: str, gpu: str) -> bool:
    return _generation(name, gpu) != "other"


@cache
def _generation(name: str, gpu: str) -> str:
    generations = {entry.split(".")[2] for entry in constants() if entry.startswith(f"gpu.{name}.")}
    same: dict[str, str] = data_file("costs", "constants")["gpu"][name].get("same", {})
    words = (same.get(word, word) for word in gpu.replace("-", " ").split())
    return next((word for word in words if word in generations), "other")


@contextmanager
def overriding(values: Mapping[str, Floats]) -> Iterator[None]:
    """Override constants by dotted name inside a ``with`` block: with numbers, or with draws of shape (d, 1)."""
    unknown = sorted(set(values) - set(constants()))
    if unknown:
        raise KeyError(f"no constant {unknown[0]!r}")
    token = _OVERRIDDEN.set({**_committed(), **(_OVERRIDDEN.get() or {}), **values})
    try:
        yield
    finally:
        _OVERRIDDEN.reset(token)


def peak_flops(instance: Instance, job: Job, *, products_of_weights: bool = False) -> float:
    """Dense peak of one GPU for the job's precision, FLOP/s; in fp32 a sixteenth of the half peak where unknown."""
    if products_of_weights and job.fp8 and instance.fp8_tflops:
        return instance.fp8_tflops * 1e12
    if job.precision != "fp32":
        return instance.peak_tflops * 1e12
    entry = data_file("costs", "constants")["fp32_peak_tflops"]
    peaks = [entry["values"][word] for word in instance.gpu.replace("-", " ").split() if word in entry["values"]]
    return float(peaks[0] if peaks else instance.peak_tflops * entry["fallback_share_of_half"]) * 1e12


def memory_bandwidth(instance: Instance) -> Floats:
    """Return the bytes per second that element-wise kernels move."""
    return instance.hbm_gb_per_s * 1e9 * constant("time.memory_efficiency")
