"""Least recomputation within a limit of memory: which blocks of a step to checkpoint, solved exactly.

A checkpointed block keeps its input instead of its saved activations, and runs its forward pass again before its
backward pass. Every block is checkpointed or not, so that a limit of memory is a knapsack with one constraint per
interval of the step. Live memory in an interval depends on the choice for its own block, and for earlier blocks on the
sum of the memory that they release, which is the state of the dynamic program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["MAXIMUM_STATES", "Interval", "least_recomputation", "peak_bytes"]

MAXIMUM_STATES = 100_000
"""Blocks of many different sizes can have more combinations of released memory than this."""


@dataclass(frozen=True, slots=True)
class Interval:
    """One interval of a step, in order, with both forms of its block. Bytes."""

    block: int | None
    """Number of the block that runs in it; None between blocks."""
    is_forward: bool
    change: tuple[int, int]
    """Live memory at the end minus that at the start: with the block as it is, and checkpointed."""
    rise: tuple[int, int]
    """Peak within the interval minus live memory at the start."""


def peak_bytes(intervals: Sequence[Interval], checkpointed: Sequence[bool]) -> int:
    """Peak live memory of a step, with the choice for each block."""
    live = peak = 0
    for interval in intervals:
        form = interval.block is not None and checkpointed[interval.block]
        peak = max(peak, live + interval.rise[form])
        live += interval.change[form]
    return peak


def least_recomputation(
    intervals: Sequence[Interval], flops: Sequence[int], limit: int
) -> tuple[tuple[bool, ...] | None, bool]:
    """Choice for each block with the fewest recomputed FLOPs whose peak is within a limit.

    Parameters
    ----------
    intervals
        All blocks run forward in order and backward in reverse order, each in one interval per pass. A block's two
        changes differ by the same number of bytes in both passes, with opposite signs.
    flops
        Recomputed FLOPs of each block if it is checkpointed.
    limit
        Maximum of `peak_bytes`.

    Returns
    -------
    The choice (None if no choice is within the limit), and whether it is exact: beyond `MAXIMUM_STATES` combinations,
    states with the most FLOPs for their memory are dropped, so that the choice is within the limit and may not have
    the fewest FLOPs.
    """
    count = len(flops)
    released = [0] * count
    for interval in intervals:
        if interval.is_forward and interval.block is not None:
            released[interval.block] = interval.change[0] - interval.change[1]
    after, own = _required(intervals, released, limit)
    sums, costs = np.zeros(1, dtype=np.int64), np.zeros(1)
    if after[0] > 0:
        return None, True
    parents: list[NDArray[np.int64]] = []
    exact = True
    for block in range(count):
        plain, checkpointed = (np.flatnonzero(sums >= own[block][form]) for form in (0, 1))
        source = np.concatenate([plain, checkpointed])
        chosen = np.repeat([0, 1], [len(plain), len(checkpointed)])
        new_sums = sums[source] + chosen * released[block]
        new_costs = costs[source] + chosen * float(flops[block])
        kept_places = _best(new_sums, new_costs, after[block + 1])
        if len(kept_places) > MAXIMUM_STATES:
            exact = False
            kept_places = kept_places[np.linspace(0, len(kept_places) - 1, MAXIMUM_STATES).astype(np.int64)]
        if not len(kept_places):
            return None, exact
        sums, costs = new_sums[kept_places], new_costs[kept_places]
        parents.append(2 * source[kept_places] + chosen[kept_places])
    place = int(np.argmin(costs))
    choice: list[bool] = []
    for steps in reversed(parents):
        place, form = divmod(int(steps[place]), 2)
        choice.append(bool(form))
    return tuple(reversed(choice)), exact


def _required(
    intervals: Sequence[Interval], released: Sequence[int], limit: int
) -> tuple[list[int], list[tuple[int, int]]]:
    """Bytes that the blocks before must release.

    Returns
    -------
    ``after[i]``, required of the first i blocks for the intervals between blocks, and ``own[i][form]``, required of
    them for those of block i in either form.
    """
    lowest = -(2**62)
    count = len(released)
    after = [lowest] * (count + 1)
    own = [[lowest, lowest] for _ in range(count)]
    live, before = 0, 0
    for interval in intervals:
        block = interval.block
        if block is None:
            after[before] = max(after[before], live + interval.rise[0] - limit)
        else:
            for form in (0, 1):
                start = live if interval.is_forward else live - form * released[block]
                own[block][form] = max(own[block][form], start + interval.rise[form] - limit)
            before = block + 1 if interval.is_forward else block
        live += interval.change[0]
    return after, [(plain, checkpointed) for plain, checkpointed in own]


def _best(sums: NDArray[np.int64], costs: NDArray[np.float64], required: int) -> NDArray[np.int64]:
    """Places of the states that release enough, and that no other state beats in both memory and FLOPs."""
    order: NDArray[np.int64] = np.lexsort((costs, -sums))
    order = order[sums[order] >= required]
    if not len(order):
        return order
    lowest = np.minimum.accumulate(costs[order])
    better = np.concatenate([[True], costs[order][1:] < lowest[:-1]])
    best: NDArray[np.int64] = order[better]
    return best
