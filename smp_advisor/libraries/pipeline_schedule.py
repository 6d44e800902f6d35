"""Pipeline schedules and the default number of active microbatches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from smp_advisor.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["INTERLEAVED", "SCHEDULES", "SIMPLE", "default_active_microbatches"]

SCHEDULES = ("interleaved", "simple")
INTERLEAVED, SIMPLE = range(len(SCHEDULES))
"""Positions of the schedules in `SCHEDULES`: their codes in columns of plans."""


@overload
def default_active_microbatches(pipeline_parallel_degree: int, microbatches: int) -> int: ...
@overload
def default_active_microbatches(pipeline_parallel_degree: NDArray[Any], microbatches: NDArray[Any]) -> NDArray[Any]: ...
def default_active_microbatches(pipeline_parallel_degree: Any, microbatches: Any) -> Any:
    """Active microbatches of a plan that sets none: SMP v1's default of ``active_microbatches``.

    Takes counts of one plan, or arrays of shape (n,).

    Examples
    --------
    >>> default_active_microbatches(4, 16)
    6
    """
    limit = pipeline_parallel_degree + 2
    if isinstance(limit, int):
        return min(limit, microbatches)
    with uninterrupted():
        import numpy as np  # not with the plans: reading one needs no arrays

    return np.minimum(limit, microbatches)
