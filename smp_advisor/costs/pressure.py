"""Time that PyTorch's allocator takes near full memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.costs.constants import constant
from smp_advisor.elementwise import maximum, where

if TYPE_CHECKING:
    from smp_advisor.elementwise import Floats

__all__ = ["pressure_factor", "pressure_warning"]


def pressure_factor(needed_bytes: Floats, usable_bytes: float) -> Floats:
    """Step time relative to that with free memory: blocks are freed and reserved again, which waits for the GPU.

    Linear from 1 at `memory.pressure_from` of the usable memory to `memory.pressure_factor` at all of it. A plan that
    does not fit has no step to slow down: 1.
    """
    first = constant("memory.pressure_from")
    share = needed_bytes / usable_bytes
    over = where(share <= 1, maximum(share - first, 0.0), 0.0) / (1 - first)
    return 1 + (constant("memory.pressure_factor") - 1) * over


def pressure_warning(needed_bytes: float, usable_bytes: float) -> tuple[str, ...]:
    """A sentence for a plan that fits with little memory to spare."""
    factor = float(pressure_factor(needed_bytes, usable_bytes))
    if factor == 1:
        return ()
    warning = (
        f"Warning: the plan needs {100 * needed_bytes / usable_bytes:.0f} % of the GPU's memory. Near full memory a job"
        " fits and is slow, because the allocator frees and reserves memory in every step: a run at 97 % took 2.2 times"
        f" as long. The step time is counted {factor:.2f} times."
    )
    return (warning,)
