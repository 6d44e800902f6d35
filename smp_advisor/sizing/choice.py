"""Choice among clusters: a short function per goal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from smp_advisor.search.rank import NEAR_BEST
from smp_advisor.sizing.cluster_size import ClusterSize, saving

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.sizing.limits import Limits

__all__ = ["Goal", "choose", "knees", "saves", "within"]

Goal = Literal["smallest", "fastest", "cheapest"]

_WORTH = 0.5
"""Least share of the speed of the first nodes that further nodes must add to be before the knee."""


def choose(
    sizes: Sequence[ClusterSize], goal: Goal, limits: Limits, requested: Cluster | None = None
) -> ClusterSize | None:
    """The best cluster for a goal among those that fit within the limits; None if there is none.

    ``smallest``: the lowest price per hour. ``fastest``: the highest throughput. ``cheapest``: the lowest cost of the
    run; the requested cluster stays unless the 95 % interval of the saving is above zero. Clusters whose entire
    interval is within the limits come first. Values within 3 % are equal: then the lower price per hour wins.
    """
    fitting = [size for size in sizes if size.fits and within(size, limits)]
    sure = [size for size in fitting if within(size, limits, surely=True)]
    candidates = sure or fitting
    if goal == "cheapest":
        candidates = [size for size in candidates if size.usd is not None]
    if not candidates:
        return None
    if goal == "smallest":
        return min(candidates, key=lambda size: (_per_hour(size), -size.tokens_per_second))
    if goal == "fastest":
        top = max(size.tokens_per_second for size in candidates)
        near = [size for size in candidates if size.tokens_per_second >= top * (1 - NEAR_BEST)]
        return min(near, key=_per_hour)
    least = min(size.usd or 0.0 for size in candidates)
    near = [size for size in candidates if (size.usd or 0.0) <= least * (1 + NEAR_BEST)]
    cheapest = min(near, key=_per_hour)
    own = next((size for size in candidates if size.cluster == requested), None)
    return own if own is not None and not saves(cheapest, own) else cheapest


def saves(cheaper: ClusterSize, dearer: ClusterSize) -> bool:
    """Whether the entire 95 % interval of a saving is above zero."""
    shares = saving(cheaper, dearer)
    return shares is not None and shares[1] > 0


def within(size: ClusterSize, limits: Limits, *, surely: bool = False) -> bool:
    """Whether a run is within the limits; `surely` with its entire 95 % interval."""
    now = size.estimate
    if not limits:
        return True
    if now is None:
        return False
    if not surely:
        return limits.allow(now.days, now.usd_total)
    days, usd = now.days_range, now.usd_total_range
    return limits.allow(None if days is None else days[1], None if usd is None else usd[1])


def _per_hour(size: ClusterSize) -> float:
    price = size.cluster.usd_per_hour
    return float("inf") if price is None else price


def knees(sizes: Sequence[ClusterSize]) -> list[ClusterSize]:
    """The knee of each instance type: the largest cluster that is worth its nodes.

    It is if each node more than those of the last such cluster adds at least half the speed that a node has at best.
    """
    types = dict.fromkeys(size.cluster.instance.name for size in sizes if size.fits)
    return [_knee([size for size in sizes if size.fits and size.cluster.instance.name == name]) for name in types]


def _knee(sizes: list[ClusterSize]) -> ClusterSize:
    by_count = sorted(sizes, key=lambda size: size.cluster.nodes)
    knee = by_count[0]
    per_node = knee.tokens_per_second / knee.cluster.nodes
    for size in by_count[1:]:
        added = (size.tokens_per_second - knee.tokens_per_second) / (size.cluster.nodes - knee.cluster.nodes)
        if added >= _WORTH * per_node:
            knee = size
            per_node = max(per_node, size.tokens_per_second / size.cluster.nodes)
    return knee
