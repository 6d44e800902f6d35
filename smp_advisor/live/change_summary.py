"""Effect of a change of the controls on memory and throughput, in one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Outcome", "describe"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of a plan that a summary compares, rounded like those of the views."""

    configuration: Sequence[str]
    """Texts in the order of the rows."""
    needed_gib: float
    """Memory needed per GPU, GiB."""
    samples_per_second: float
    fits: bool


def describe(rows: Sequence[str], before: Outcome, after: Outcome, *, moved: str, usable_gib: float) -> str:
    """Summarize a change.

    Parameters
    ----------
    rows
        Labels of the configuration.
    before, after
        The plan before and after the change.
    moved
        Label of the control that moved. Settings that followed are in parentheses.
    usable_gib
        Usable memory per GPU, GiB.
    """
    changes = {
        row: f"{was or 'none'} → {now or 'none'}"
        for row, was, now in zip(rows, before.configuration, after.configuration, strict=True)
        if was != now
    }
    if not changes:
        return ""
    first = f"{moved} {changes.pop(moved)}" if moved in changes else ""
    dependents = ", ".join(f"{_lower(row)} {change}" for row, change in changes.items())
    subject = f"{first} ({dependents})" if first and dependents else first or _upper(dependents)
    return f"{subject}: {_memory(before, after, usable_gib)}, {_throughput(before, after)}{_fit(before, after)}."


def _memory(before: Outcome, after: Outcome, usable_gib: float) -> str:
    needed = after.needed_gib
    change = needed - before.needed_gib
    now = f"({needed:.1f} of {usable_gib:.1f} GiB)"
    if abs(change) < 0.05:
        return f"no change in memory {now}"
    return f"memory {_sign(change)}{abs(change):.1f} GiB per GPU {now}"


def _throughput(before: Outcome, after: Outcome) -> str:
    change = 100 * (after.samples_per_second / before.samples_per_second - 1)
    if abs(change) < 0.05:
        return "no change in throughput"
    size = f"{abs(change):.0f}" if abs(change) >= 9.95 else f"{abs(change):.1f}"
    return f"throughput {_sign(change)}{size} %"


def _fit(before: Outcome, after: Outcome) -> str:
    if before.fits == after.fits:
        return "" if after.fits else "; still does not fit"
    return "; now fits" if after.fits else "; no longer fits"


def _sign(change: float) -> str:
    return "+" if change > 0 else "−"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
