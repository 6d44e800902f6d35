"""Comparison of a trace with real steps of copies, extrapolated to the full size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.profiling.scaled.full_size import figure_text
from smp_advisor.profiling.scaled.result import Comparison

if TYPE_CHECKING:
    from smp_advisor.profiling.result import Profile
    from smp_advisor.profiling.scaled.full_size import FullSize

__all__ = ["comparison_text", "comparisons"]


def comparisons(profile: Profile) -> tuple[Comparison, ...]:
    """Figures of the full model by the trace, and as extrapolated from real steps of copies.

    Empty if one of them is missing or both are from copies, or if they are not of the same precision, attention kernel
    and size.
    """
    full_size: FullSize | None = getattr(profile.scaled, "full_size", None)
    is_copied = any(source.figure == "saved bytes" and "copies" in source.note for source in profile.provenance)
    if full_size is None or not profile.is_traced or is_copied:
        return ()
    settings = (full_size.precision, full_size.attention, full_size.sequence)
    if settings != (profile.precision, profile.attention, profile.sequence):
        return ()
    size = full_size.batch, full_size.sequence
    traced = {
        "parameters": profile.parameter_count,
        "saved bytes": profile.saved_bytes(*size),
        "forward FLOPs": profile.forward_flops(*size),
        "backward FLOPs": profile.backward_flops(*size),
    }
    return tuple(
        Comparison(figure, traced[figure], measured, "the trace") for figure, measured in full_size.figures.items()
    )


def comparison_text(profile: Profile) -> str:
    """The comparison as text, with the size of the microbatch and its basis; empty if there is none."""
    rows = comparisons(profile)
    if not rows:
        return ""
    texts = (
        f"{row.figure} {figure_text(row.figure, row.measured)} (trace {figure_text(row.figure, row.predicted)},"
        f" {row.ratio - 1:+.2%})"
        for row in rows
    )
    full_size: FullSize = profile.scaled.full_size
    return f"{', '.join(texts)} at {full_size.size}, extrapolated from {full_size.basis}"
