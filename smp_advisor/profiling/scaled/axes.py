"""Dimensions along which measurements of copies are extrapolated."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

__all__ = ["EXPERTS", "VOCABULARY", "Axis", "Widths"]

EXPERTS, VOCABULARY = "experts", "vocabulary"


@dataclass(frozen=True, slots=True)
class Axis:
    """A dimension in which every figure is linear: a depth, the vocabulary or the number of experts."""

    name: str
    low: int
    high: int
    full: int

    @property
    def share(self) -> Fraction:
        """Place of the full size: 0 is `low`, 1 is `high`."""
        return Fraction(self.full - self.low, self.high - self.low)


@dataclass(frozen=True, kw_only=True, slots=True)
class Widths:
    """Widths of copies, as numerators of a fraction of the full width. All of a model's widths scale together."""

    name: str = ""
    """The width to display: ``hidden_size``."""
    full: int = 0
    nodes: tuple[int, ...] = (1,)
    """Numerators to measure. Every figure is of degree 2 in the width."""
    under: int = 1
    """Denominator, which is the numerator of the full width."""
    check: int = 0
    """Numerator of a further copy that confirms the polynomial; 0 for none."""

    @property
    def is_full(self) -> bool:
        """Whether copies have the full width."""
        return self.nodes == (self.under,)
