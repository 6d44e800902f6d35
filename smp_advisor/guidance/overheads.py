"""Effective time in words: the parts of a run besides its training steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smp_advisor.costs.estimate import Estimate

__all__ = ["overhead_notes", "overhead_summary"]

_VISIBLE = 0.0005
"""Half of the last digit in which shares are shown."""


def overhead_summary(estimate: Estimate) -> str:
    """Shares of the visible parts, the largest first: ``data loading 1.0 %, checkpoints 0.3 % (partly assumed)``."""
    if not estimate.effective.parts:
        return "not counted: days and cost are those of the training steps"
    parts = sorted((p for p in estimate.effective.parts if p.share >= _VISIBLE), key=lambda part: -part.share)
    if not parts:
        return "the other parts of the run are negligible"
    shares = ", ".join(f"{part.title.lower()} {100 * part.share:.1f} %" for part in parts)
    return shares + (" (partly assumed)" if any(part.assumed for part in parts) else "")


def overhead_notes(estimate: Estimate) -> tuple[str, ...]:
    """One sentence per part, with its source."""
    return tuple(
        f"{part.title}, {100 * part.share:.2f} % of the time{' (assumed)' if part.assumed else ''}: {part.detail}"
        f" Source: {part.source}."
        for part in estimate.effective.parts
    )
