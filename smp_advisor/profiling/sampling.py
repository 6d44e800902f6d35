"""At which batches and sequences a model is traced, so that polynomials through them hold for the job."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SAMPLE_BATCHES", "Samples", "choose_samples"]

SAMPLE_BATCHES = (2, 3)
"""Not 1: a batch of one takes other paths (squeezed dimensions, views instead of copies)."""
_UNSEEN_BATCH = 5
_ALIGNED = 32
"""Kernels round sequences up to it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """A grid to fit on, and a point to check the fit on."""

    sequences: tuple[int, ...]
    unseen: tuple[int, int]
    sequence: int
    """Tokens a sample of the job within what the model can take."""

    @property
    def points(self) -> tuple[tuple[int, int], ...]:
        """Every (batch, sequence) of the grid."""
        return tuple((batch, sequence) for batch in SAMPLE_BATCHES for sequence in self.sequences)

    @property
    def largest(self) -> tuple[int, int]:
        """The point that the whole model is traced at."""
        return SAMPLE_BATCHES[0], self.sequences[-1]


def choose_samples(sequence: int, *, has_sequence: bool, longest: int = 0, window: int = 0) -> Samples:
    """Three sequences up to the job's, on the same side of a sliding window as the job's.

    Parameters
    ----------
    longest
        Positions the model has at most, 0 without a limit.
    window
        Tokens of sliding-window attention, 0 without; costs change their form where a sequence exceeds it.
    """
    if not has_sequence:
        return Samples(sequences=(1,), unseen=(_UNSEEN_BATCH, 1), sequence=1)
    wanted = min(sequence, longest) if longest else sequence
    step = _ALIGNED if not longest or longest >= 3 * _ALIGNED else max(1, longest // 4)
    low = -(-(window + 1) // step) * step if window and wanted > window else 0
    top = max(_up(wanted, step), low + 3 * step)
    if longest:
        top = min(top, longest // step * step)
    span = top - low
    chosen = sorted({low + _up(max(span // 4, 1), step), low + _up(max(span // 2, 1), step), top})
    while len(chosen) < 3:  # short sequences: the nearest multiples that are left
        below = next((n for n in range(top - step, 0, -step) if n not in chosen), None)
        chosen = sorted({*chosen, below if below is not None else chosen[-1] + step})
    between = low + _up(max(3 * span // 4, 1), step)
    unseen = between if between not in chosen else chosen[0]
    return Samples(sequences=tuple(chosen), unseen=(_UNSEEN_BATCH, unseen), sequence=wanted)


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
