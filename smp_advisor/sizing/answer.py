"""The answer to a question about clusters, in short sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.guidance.wording import gib, percent, plural
from smp_advisor.sizing.choice import choose, saves, within
from smp_advisor.sizing.cluster_size import saving
from smp_advisor.sizing.figures import time_and_cost

if TYPE_CHECKING:
    from smp_advisor.sizing.cluster_size import ClusterSize
    from smp_advisor.sizing.curve import ClusterSizes

__all__ = ["nothing", "sentences"]

_GOALS = {
    "smallest": "is the smallest cluster that fits",
    "fastest": "is the fastest cluster",
    "cheapest": "is the cheapest cluster",
}


def sentences(sizes: ClusterSizes) -> list[str]:
    """The chosen cluster with its figures, what it saves, the knee, and how many clusters were compared."""
    chosen, count = sizes.chosen, len(sizes.sizes)
    compared = f"{plural(count, 'cluster')} compared{'' if sizes.complete else ', then it was stopped'}."
    if chosen is None:
        return [f"{nothing(sizes)}.", compared]
    verdict = f" {_verdict(sizes, chosen)}{_limits(sizes, chosen)}" if count > 1 or sizes.limits else ""
    result = [f"{chosen.name}{verdict}: {_figures(sizes, chosen)}."]
    if count == 1:
        return result
    return [*result, *_saving(sizes, chosen), *_knee(sizes, chosen), compared]


def _verdict(sizes: ClusterSizes, chosen: ClusterSize) -> str:
    if len(sizes.sizes) == 1:
        return "is"
    stays = chosen is sizes.own and chosen is not choose(sizes.sizes, "cheapest", sizes.limits)
    return "stays, because no cluster is surely cheaper" if stays and sizes.goal == "cheapest" else _GOALS[sizes.goal]


def _limits(sizes: ClusterSizes, chosen: ClusterSize) -> str:
    if not sizes.limits:
        return ""
    surely = within(chosen, sizes.limits, surely=True)
    return f" {sizes.limits.words}, {'' if surely else 'though not '}with its entire interval"


def _figures(sizes: ClusterSizes, size: ClusterSize) -> str:
    return (
        "no plan fits" if size.estimate is None else ", ".join(filter(None, time_and_cost(sizes.model, size.estimate)))
    )


def _saving(sizes: ClusterSizes, chosen: ClusterSize) -> list[str]:
    """The saving over the requested cluster, or the reason to stay with it."""
    own = sizes.own
    if own is None or sizes.goal != "cheapest":
        return []
    if own is not chosen and not within(own, sizes.limits):
        return [f"{own.name} is beyond the limit: {_figures(sizes, own)}."]
    if own is not chosen:
        shares = saving(chosen, own)
        if shares is None:
            return []
        if saves(chosen, own):
            return [f"It saves {_share(shares)} over {own.name}: {_figures(sizes, own)}."]
        may = f"{own.name} may exceed the limit: {_figures(sizes, own)}."
        return [f"{may} The difference in cost of {_share(shares)} is not resolved: zero is within its interval."]
    cheapest = choose(sizes.sizes, "cheapest", sizes.limits)
    shares = None if cheapest is None else saving(cheapest, own)
    if cheapest is None or shares is None or cheapest is own or saves(cheapest, own):
        return []
    return [
        f"{cheapest.name} has the lowest estimate: {_figures(sizes, cheapest)}.",
        f"The difference in cost of {_share(shares)} is not resolved: zero is within its interval.",
    ]


def _knee(sizes: ClusterSizes, chosen: ClusterSize) -> list[str]:
    kind = chosen.cluster.instance.name
    knee = next((size for size in sizes.knees if size.cluster.instance.name == kind), None)
    counts = [size.cluster.nodes for size in sizes.sizes if size.cluster.instance.name == kind]
    most = max(counts)
    if knee is None or most == min(counts):
        return []
    if knee.cluster.nodes < most:
        return [f"The knee of {kind} is at {knee.cluster.nodes} nodes: further ones add less than half a node's speed."]
    return [f"Up to {most} nodes of {kind}, each adds at least half a node's speed."]


def nothing(sizes: ClusterSizes, enough: ClusterSize | None = None) -> str:
    """Why no cluster is the answer, and the nearest one, as a sentence without its period.

    Parameters
    ----------
    enough
        A larger cluster that would be.
    """
    count = len(sizes.sizes)
    if not any(size.fits for size in sizes.sizes):
        return f"No plan fits {sizes.model.name} on any of these {count} clusters{_nearest(sizes)}"
    nearest = {"fastest": sizes.fastest if sizes.limits.max_days else None}
    nearest["cheapest"] = sizes.cheapest if sizes.limits.max_usd else None
    parts = [
        f"the {title} is {size.name} ({_figures(sizes, size)})" if count > 1 else f"it needs {_figures(sizes, size)}"
        for title, size in nearest.items()
        if size is not None
    ]
    if enough is not None:
        parts.append(f"{enough.name} would be enough ({_figures(sizes, enough)})")
    where = f"None of {count} clusters trains" if count > 1 else f"{sizes.sizes[0].name} does not train"
    return f"{where} {sizes.model.name} {sizes.limits.words}: {'; '.join(dict.fromkeys(parts))}"


def _nearest(sizes: ClusterSizes) -> str:
    best = sizes.nearest
    if best is None or best.nearest_gib is None:
        return ""
    usable = best.cluster.instance.usable_gpu_memory_gib
    return f": the nearest is {best.name}, with {gib(best.nearest_gib)} needed of {gib(usable)}"


def _share(shares: tuple[float, float, float]) -> str:
    """A saving with its interval: ``22 % (4 to 37)``."""
    point, low, high = shares
    return f"{'' if point >= 0 else '-'}{percent(point)} ({100 * low:.0f} to {100 * high:.0f})"
