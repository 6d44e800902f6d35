"""Comparison of fitted figures with a trace that was not fitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.profiling.polynomial import Polynomial
from smp_advisor.profiling.result import Agreement

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from smp_advisor.profiling.extrapolation import Extrapolated
    from smp_advisor.profiling.step import StepMeasure

__all__ = ["FIGURES", "TOLERANCE", "against_full", "against_unseen", "agrees"]

TOLERANCE = 1e-4
"""Maximum relative error of the extrapolated trace in saved bytes and FLOPs."""
_PEAK_TOLERANCE = 1e-3
"""Maximum relative error in the peak: when autocast ends, it frees the 16-bit copies of the biases all at once."""

FIGURES: dict[str, Callable[[StepMeasure], int]] = {
    "saved bytes": lambda step: step.saved_bytes,
    "forward FLOPs": lambda step: step.forward_flops,
    "backward FLOPs": lambda step: step.backward_flops,
}


def agrees(agreement: Agreement) -> bool:
    """Whether the prediction is within the tolerance of its figure."""
    limit = _PEAK_TOLERANCE if agreement.figure.startswith("peak") else TOLERANCE
    return abs(agreement.ratio - 1) <= limit


def against_full(extrapolated: Extrapolated, full: StepMeasure, batch: int, sequence: int) -> list[Agreement]:
    """Compare the extrapolated figures with a trace of the full model."""
    predicted = (extrapolated.saved_bytes, extrapolated.forward_flops, extrapolated.backward_flops)
    agreements = [
        Agreement(figure=figure, predicted=value(batch, sequence), measured=read(full), against="the full trace")
        for (figure, read), value in zip(FIGURES.items(), predicted, strict=True)
    ]
    if extrapolated.timeline:
        live = peak = 0
        for segment in extrapolated.timeline:
            peak = max(peak, live + segment.rise_bytes(batch, sequence))
            live += segment.change_bytes(batch, sequence)
        measured = full.peak_bytes - full.resident_bytes
        agreements.append(
            Agreement(figure="peak of a pass", predicted=peak, measured=measured, against="the full trace")
        )
    return agreements


def against_unseen(
    points: Mapping[tuple[int, int], StepMeasure], unseen: StepMeasure, batch: int, sequence: int
) -> tuple[list[Agreement], list[str]]:
    """Compare the fitted polynomials with a step at a size that was not fitted; also returns warnings."""
    agreements = [
        Agreement(
            figure=figure,
            predicted=Polynomial.fit_each(points, read)(batch, sequence),
            measured=read(unseen),
            against=f"a trace at batch {batch}, sequence {sequence}",
        )
        for figure, read in FIGURES.items()
    ]
    warnings = [
        f"{agreement.figure} at batch {batch}, sequence {sequence}: the fitted polynomial is off by "
        f"{100 * (agreement.ratio - 1):+.2f} %, so figures far from the traced sizes are estimates."
        for agreement in agreements
        if abs(agreement.ratio - 1) > TOLERANCE
    ]
    return agreements, warnings
