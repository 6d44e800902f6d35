"""Measured steps as a log has them, before warm-up and outliers are dropped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Log", "MemoryClass", "Sample", "Unit"]

Unit = Literal[
    "seconds", "samples_per_second", "tokens_per_second", "tokens_per_second_per_gpu", "steps_per_second", "run_seconds"
]
"""Unit of samples. ``run_seconds``: seconds per step of the entire run, with start-up, saves and evaluation."""

MemoryClass = Literal["allocated", "reserved", "total"]


@dataclass(frozen=True)
class Sample:
    """One measured value."""

    step: int | None
    """Number of the optimizer step; None if the log has none."""
    value: float


@dataclass(frozen=True, kw_only=True)
class Log:
    """Values that a reader found."""

    title: str
    """Format: "Megatron-LM"."""
    unit: Unit = "seconds"
    samples: tuple[Sample, ...] = ()
    peak_gib: Mapping[MemoryClass, float] = field(default_factory=dict)
    """Highest peak of the log by class, GiB."""
    out_of_memory: bool = False
    global_batch_size: int | None = None
    """Samples per step, if the log states them."""
    notes: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether it has neither a time nor a fact about memory."""
        return not (self.samples or self.peak_gib or self.out_of_memory)
