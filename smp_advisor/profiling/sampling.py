"""Selection of the batches and sequence lengths to trace, so that the fitted polynomials are valid for the job."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SAMPLE_BATCHES", "Samples", "choose_samples"]

SAMPLE_BATCHES = (2, 3)
"""Not 1: a batch of one takes different code paths (squeezed dimensions, views instead of copies)."""
_UNSEEN_BATCH = 5
_ALIGNED = 32
"""Kernels round sequence lengths up to a multiple of this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """Grid of sizes to fit, and one size to check the fit."""

    sequences: tuple[int, ...]
    unseen: tuple[int, int]
    sequence: int
    """Tokens per sample of the job, limited to the model's positions."""

    @property
    def points(self) -> tuple[tuple[int, int], ...]:
        """Every (batch, sequence) of the grid."""
        return tuple((batch, sequence) for batch in SAMPLE_BATCHES for sequence in self.sequences)

    @property
    def largest(self) -> tuple[int, int]:
        """Size at which the full model is traced."""
        return SAMPLE_BATCHES[0], self.sequences[-1]


def choose_samples(sequence: int, *, has_sequence: bool, longest: int = 0, window: int = 0) -> Samples:
    """Select three sequence lengths up to the job's, on the same side of a sliding window.

    Parameters
    ----------
    longest
        Maximum positions of the model; 0 for no limit.
    window
        Tokens of sliding-window attention, 0 without it. Cost formulas differ beyond the window.
    """
    if not has_sequence:
        return Samples(sequences=(1,), unseen=(_UNSEEN_BATCH, 1), sequence=1)
    target = min(sequence, longest) if longest else sequence
    step = _ALIGNED if not longest or longest >= 3 * _ALIGNED else max(1, longest // 4)
    low = -(-(window + 1) // step) * step if window and target > window else 0
    top = max(_up(target, step), low + 3 * step)
    if longest:
        top = min(top, longest // step * step)
    span = top - low
    lengths = sorted({low + _up(max(span // 4, 1), step), low + _up(max(span // 2, 1), step), top})
    while len(lengths) < 3:  # short sequences: the nearest unused multiples
        below = next((n for n in range(top - step, 0, -step) if n not in lengths), None)
        lengths = sorted({*lengths, below if below is not None else lengths[-1] + step})
    between = low + _up(max(3 * span // 4, 1), step)
    unseen = between if between not in lengths else lengths[0]
    return Samples(sequences=tuple(lengths), unseen=(_UNSEEN_BATCH, unseen), sequence=target)


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
