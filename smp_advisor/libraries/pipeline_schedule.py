"""Microbatches of a pipeline: the library's default for those in flight, and the names of the schedules."""

from __future__ import annotations

__all__ = ["INTERLEAVED", "SCHEDULES", "SIMPLE", "default_active_microbatches"]

SCHEDULES = ("interleaved", "simple")
INTERLEAVED, SIMPLE = range(len(SCHEDULES))
"""Positions of the schedules in `SCHEDULES`: their codes in columns of plans."""


def default_active_microbatches(pipeline_parallel_degree: int, microbatches: int) -> int:
    """Microbatches in flight where a plan sets none: SMP v1's default of ``active_microbatches``.

    Examples
    --------
    >>> default_active_microbatches(4, 16)
    6
    """
    return min(pipeline_parallel_degree + 2, microbatches)
