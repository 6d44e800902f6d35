"""Figures of the full model, extrapolated from real steps of copies at several widths and depths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smp_advisor.workload.counts import format_count

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Dimension", "FullSize"]


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of the copies, and its size in the full model."""

    name: str
    copies: tuple[int, ...]
    full: int

    def __str__(self) -> str:
        sizes = [f"{size:,}" for size in self.copies]
        return f"{self.name} {', '.join(sizes[:-1])} and {sizes[-1]} → {self.full:,}"


@dataclass(frozen=True, kw_only=True, slots=True)
class FullSize:
    """Measured figures of copies, extrapolated to the full model.

    Parameters, FLOPs and saved bytes are polynomials: of degree 2 in the width and in the sequence, and of degree 1 in
    depth, vocabulary and experts. Two further steps, at another width and at a longer sequence, confirmed them.
    """

    parameters: int
    """Tied parameters count once."""
    saved_bytes: int
    """Saved by autograd at the end of the forward pass of one microbatch, excluding parameters and buffers. 0 if the
    kernels of this machine save other tensors than those of a GPU, as for recurrent layers."""
    forward_flops: int
    backward_flops: int
    batch: int
    """Samples of the microbatch."""
    sequence: int
    """Tokens per sample; 1 without a sequence."""
    precision: str
    attention: str
    """Attention kernel whose saved tensors were measured: ``fused`` or ``eager``."""
    dimensions: tuple[Dimension, ...]
    """Dimensions that were extrapolated; all others are those of the full model."""
    copies: int
    """Number of copies that were built."""

    @property
    def figures(self) -> dict[str, int]:
        """Figures by name, as in `smp_advisor.profiling.trace.FIGURES`; without those that are unknown."""
        figures = {
            "parameters": self.parameters,
            "saved bytes": self.saved_bytes,
            "forward FLOPs": self.forward_flops,
            "backward FLOPs": self.backward_flops,
        }
        return {name: value for name, value in figures.items() if value}

    @property
    def size(self) -> str:
        """Size of the microbatch, as text."""
        return f"batch {self.batch}" + (f", {self.sequence:,} tokens" if self.sequence > 1 else "")

    @property
    def basis(self) -> str:
        """The measured steps, as text for the user."""
        steps = f"real steps of {self.copies} copies" if self.copies > 1 else "real steps of one copy"
        return f"{steps}: {'; '.join(map(str, self.dimensions)) or 'no dimension is reduced'}"

    def __str__(self) -> str:
        texts = (f"{name} {figure_text(name, value)}" for name, value in self.figures.items())
        return f"{', '.join(texts)} ({self.size}), from {self.basis}"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> FullSize:
        """Inverse of `dataclasses.asdict`, also after a JSON round trip."""
        dimensions = (Dimension(row["name"], tuple(row["copies"]), row["full"]) for row in values["dimensions"])
        return cls(**{**values, "dimensions": tuple(dimensions)})


def figure_text(name: str, value: float) -> str:
    """A figure with its unit: ``8.03 B``, ``13.3 GiB`` or ``32.9 T``."""
    if name == "saved bytes":
        return f"{value / 2**30:.4g} GiB" if value >= 2**30 / 100 else f"{value / 2**20:.4g} MiB"
    return format_count(value)
