"""Exact polynomials through measurements of copies, evaluated at the full size."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Raised", "at_full_size", "at_place"]

Raised = frozenset[str]
"""Axes of which a copy has the higher of two sizes."""


def at_place(values: Mapping[int, Fraction | int], place: int) -> Fraction:
    """Value at a place of the lowest-degree polynomial through the points (Lagrange)."""
    total = Fraction(0)
    for node, value in values.items():
        weights = (Fraction(place - second, node - second) for second in values if second != node)
        total += math.prod(weights, start=Fraction(1)) * value
    return total


def at_full_size(values: Mapping[tuple[int, Raised], Fraction], shares: Mapping[str, Fraction], width: int) -> Fraction:
    """Value at a width and a place on each axis of a function that is linear in every axis.

    Parameters
    ----------
    values
        By width and raised axes. A width that has a set must have its subsets, too. A set that fewer widths have is of
        a lower degree in the width; axes that are in no common set do not interact.
    shares
        Place of the result on each axis: 0 is the lower size, 1 the higher one.
    """
    total = Fraction(0)
    for raised in {raised for _, raised in values}:
        changes = {
            node: sum(((-1) ** len(raised - part) * values[node, part] for part in _subsets(raised)), Fraction(0))
            for node, axes in values
            if axes == raised
        }
        total += at_place(changes, width) * math.prod((shares[axis] for axis in raised), start=Fraction(1))
    return total


def _subsets(axes: Raised) -> Iterator[Raised]:
    return (frozenset(part) for size in range(len(axes) + 1) for part in combinations(sorted(axes), size))
