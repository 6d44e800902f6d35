"""What a move of the controls did to memory and speed, in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.notebook.view_state import Moment

__all__ = ["describe"]


def describe(rows: Sequence[str], before: Moment, after: Moment, *, moved: str, usable_gib: float) -> str:
    """Say what changed.

    Parameters
    ----------
    rows
        Labels of the configuration.
    before, after
        What was shown, and what is.
    moved
        Label of the control that moved; what followed from it stands in brackets.
    usable_gib
        Usable memory of one GPU.
    """
    changes = {
        row: f"{was or 'none'} → {now or 'none'}"
        for row, was, now in zip(rows, before["configuration"], after["configuration"], strict=True)
        if was != now
    }
    if not changes:
        return ""
    first = f"{moved} {changes.pop(moved)}" if moved in changes else ""
    others = ", ".join(f"{_lower(row)} {change}" for row, change in changes.items())
    subject = f"{first} ({others})" if first and others else first or _upper(others)
    return f"{subject}: {_memory(before, after, usable_gib)}, {_throughput(before, after)}{_fit(before, after)}."


def _memory(before: Moment, after: Moment, usable_gib: float) -> str:
    needed = after["costs"]["needed_gib"]
    change = needed - before["costs"]["needed_gib"]
    now = f"({needed:.1f} of {usable_gib:.1f} GiB)"
    if abs(change) < 0.05:
        return f"memory needed unchanged {now}"
    return f"memory needed {_sign(change)}{abs(change):.1f} GiB {now}"


def _throughput(before: Moment, after: Moment) -> str:
    change = 100 * (after["costs"]["samples_per_second"] / before["costs"]["samples_per_second"] - 1)
    if abs(change) < 0.05:
        return "throughput unchanged"
    size = f"{abs(change):.0f}" if abs(change) >= 9.95 else f"{abs(change):.1f}"
    return f"throughput {_sign(change)}{size} %"


def _fit(before: Moment, after: Moment) -> str:
    if before["costs"]["fits"] == after["costs"]["fits"]:
        return "" if after["costs"]["fits"] else "; still does not fit"
    return "; now it fits" if after["costs"]["fits"] else "; it no longer fits"


def _sign(change: float) -> str:
    return "+" if change > 0 else "−"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
