"""Exact polynomials in batch and sequence, fitted to traces at a few sizes."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Polynomial:
    """Bytes or FLOPs, an integer, as a function of samples and of tokens per sample.

    Examples
    --------
    >>> saved = Polynomial.fit({(1, 32): 96, (2, 32): 192, (1, 64): 192, (2, 64): 384})
    >>> saved(8, 2048)
    49152
    """

    coefficients: tuple[tuple[Fraction, ...], ...] = ((Fraction(0),),)
    """``coefficients[i][j]`` multiplies ``batch**i * sequence**j``."""

    def __call__(self, batch: int, sequence: int = 1) -> int:
        """Return the value for `batch` samples of `sequence` tokens, rounded to an integer."""
        return round(
            sum(
                (
                    factor * batch**i * sequence**j
                    for i, row in enumerate(self.coefficients)
                    for j, factor in enumerate(row)
                ),
                Fraction(0),
            )
        )

    def __add__(self, addend: Polynomial) -> Polynomial:
        rows = max(len(self.coefficients), len(addend.coefficients))
        columns = max(len(self.coefficients[0]), len(addend.coefficients[0]))
        return Polynomial(
            tuple(tuple(self.coefficient(i, j) + addend.coefficient(i, j) for j in range(columns)) for i in range(rows))
        )

    def __sub__(self, subtrahend: Polynomial) -> Polynomial:
        return self + subtrahend * -1

    def __mul__(self, factor: int | Fraction) -> Polynomial:
        return Polynomial(tuple(tuple(value * factor for value in row) for row in self.coefficients))

    def coefficient(self, batch_power: int, sequence_power: int) -> Fraction:
        """Factor of ``batch**batch_power * sequence**sequence_power``; 0 beyond the degree."""
        if batch_power >= len(self.coefficients) or sequence_power >= len(self.coefficients[0]):
            return Fraction(0)
        return self.coefficients[batch_power][sequence_power]

    @classmethod
    def fit(cls, values: Mapping[tuple[int, int], int | Fraction]) -> Polynomial:
        """Fit a polynomial through every point of a grid of (batch, sequence).

        The degree in each variable is one less than its number of grid values. With a single batch, the values are in
        proportion to it.

        Raises
        ------
        ValueError
            The points do not form a full grid.
        """
        batches = sorted({batch for batch, _ in values})
        sequences = sorted({sequence for _, sequence in values})
        if len(values) != len(batches) * len(sequences):
            raise ValueError(f"a fit requires every combination of batches {batches} and sequences {sequences}")
        along_sequence = [
            _through(sequences, [Fraction(values[batch, sequence]) for sequence in sequences]) for batch in batches
        ]
        if len(batches) == 1:
            batches, along_sequence = [0, *batches], [[Fraction(0)] * len(sequences), *along_sequence]
        columns = [_through(batches, [row[j] for row in along_sequence]) for j in range(len(sequences))]
        return cls(tuple(tuple(column[i] for column in columns) for i in range(len(batches))))

    @classmethod
    def fit_each(cls, points: Mapping[tuple[int, int], T], read: Callable[[T], int]) -> Polynomial:
        """`fit` of one figure, read from the measurement at each point."""
        return cls.fit({point: read(value) for point, value in points.items()})

    def as_list(self) -> list[list[str]]:
        """Coefficients as text, such as ``"3/2"``."""
        return [[str(value) for value in row] for row in self.coefficients]

    @classmethod
    def from_list(cls, rows: Sequence[Sequence[str]]) -> Polynomial:
        """Inverse of `as_list`."""
        return cls(tuple(tuple(Fraction(value) for value in row) for row in rows))


def _through(places: Sequence[int], values: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients, lowest first, of the lowest-degree polynomial through the points (Newton's divided differences)."""
    differences = list(values)
    for order in range(1, len(places)):
        for k in range(len(places) - 1, order - 1, -1):
            differences[k] = (differences[k] - differences[k - 1]) / (places[k] - places[k - order])
    result = [Fraction(0)] * len(places)
    for k in range(len(places) - 1, -1, -1):
        # Horner: result = result * (x - places[k]) + differences[k]
        shifted = [Fraction(0), *result[:-1]]
        result = [up - places[k] * here for up, here in zip(shifted, result, strict=True)]
        result[0] += differences[k]
    return result
