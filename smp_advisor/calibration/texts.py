"""Figures of an estimate with their intervals, as texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smp_advisor.costs.estimate import Estimate

__all__ = ["needed", "step_time"]

_TWO_SIDED = 1.96


def step_time(of: Estimate) -> str:
    """Step time with its 95 % interval."""
    low, high = of.step_seconds_range
    return f"{of.step_seconds:.3g} s, {low:.3g} to {high:.3g}"


def needed(of: Estimate) -> str:
    """Required memory with its 95 % interval."""
    return f"{of.needed_gib:.1f} ± {_TWO_SIDED * of.memory_error_gib:.1f} GiB"
