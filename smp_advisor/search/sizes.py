"""The searched clusters of a question: the choice with its reasons, the knee of each instance type, the table."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from smp_advisor.cluster.cluster import Cluster
from smp_advisor.core.tables import Table, frame_of
from smp_advisor.core.words import escape, plural
from smp_advisor.costs.uncertainty import TWO_SIDED, kind_correlation, spreads
from smp_advisor.costs.wording import cost_per_million, gib, percent, rate, run_cost, run_time
from smp_advisor.search.clusters import ClusterSize, Goal, Limits, best_on, holds_parameters, hourly
from smp_advisor.search.rank import NEAR_BEST

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.search.clusters import Places, Question
    from smp_advisor.workload.model import Model

Progress = Callable[[float, float, str], Any]
"""Called with the number of finished parts, that of all, and the name of the next one."""

_WORTH = 0.5
"""Least share of the speed of the first nodes that further nodes must add to be before the knee."""
_SHOWN = 24
"""Most rows of the text and the HTML; the DataFrame has all."""
_COLUMNS = ("cluster", "library", "time (95 %)", "cost (95 %)", "memory per GPU", "")
_GOALS = {
    "smallest": "is the smallest cluster that fits",
    "fastest": "is the fastest cluster",
    "cheapest": "is the cheapest cluster",
}


def saving(cheaper: ClusterSize, dearer: ClusterSize) -> tuple[float, float, float] | None:
    """Share of the cost that a cluster saves over another, and the ends of its 95 % interval; None without prices.

    On one instance type the error of the script and the machine cancels, and that of each run remains (`spreads`).
    Between two types, or one node and several, the errors are correlated (`kind_correlation`) and cancel in part.
    """
    if cheaper.usd is None or dearer.usd is None:
        return None
    variance = sum(spreads(size.stack, size.kind)[1] ** 2 for size in (cheaper, dearer))
    if cheaper.cluster.instance.name != dearer.cluster.instance.name or cheaper.kind != dearer.kind:
        first, second = (spreads(size.stack, size.kind)[0] for size in (cheaper, dearer))
        variance = first**2 + second**2 - 2 * kind_correlation() * first * second + variance
    ratio, wide = cheaper.usd / dearer.usd, math.exp(TWO_SIDED * math.sqrt(variance))
    return 1 - ratio, 1 - ratio * wide, 1 - ratio / wide


def saves(cheaper: ClusterSize, dearer: ClusterSize) -> bool:
    """Return whether the entire 95 % interval of a saving is above zero."""
    shares = saving(cheaper, dearer)
    return shares is not None and shares[1] > 0


def within(size: ClusterSize, limits: Limits, *, surely: bool = False) -> bool:
    """Return whether a run is within the limits; `surely` with its entire 95 % interval."""
    now = size.estimate
    if not limits or now is None:
        return not limits
    if not surely:
        return limits.allow(now.days, now.usd_total, size.cluster.gpus)
    days, usd = now.days_range, now.usd_total_range
    return limits.allow(None if days is None else days[1], None if usd is None else usd[1], size.cluster.gpus)


def choose(
    sizes: Sequence[ClusterSize],
    goal: Goal,
    limits: Limits,
    requested: Cluster | None = None,
    *,
    equal: float = NEAR_BEST,
) -> ClusterSize | None:
    """Return the best cluster for a goal among those that fit within the limits; None if there is none.

    Clusters whose entire interval is within the limits come first. Values within the share `equal` are equal: then the
    lower price per hour wins. The requested cluster stays unless the 95 % interval of the saving is above zero.
    """
    fitting = [size for size in sizes if size.fits and within(size, limits)]
    candidates = [size for size in fitting if within(size, limits, surely=True)] or fitting
    if goal == "cheapest":
        candidates = [size for size in candidates if size.usd is not None]
    if not candidates:
        return None
    if goal == "smallest":
        return min(candidates, key=lambda size: (hourly(size.cluster), -size.tokens_per_second))
    if goal == "fastest":
        top = max(size.tokens_per_second for size in candidates)
        best = [size for size in candidates if size.tokens_per_second >= top * (1 - equal)]
        return min(best, key=lambda size: hourly(size.cluster))
    least = min(size.usd or 0.0 for size in candidates)
    best = [size for size in candidates if (size.usd or 0.0) <= least * (1 + equal)]
    cheapest = min(best, key=lambda size: hourly(size.cluster))
    own = next((size for size in candidates if size.cluster == requested), None)
    return own if own is not None and not saves(cheapest, own) else cheapest


def knees(sizes: Sequence[ClusterSize]) -> list[ClusterSize]:
    """Return the knee of each instance type: the largest cluster that is worth its nodes."""
    by_count = sorted((size for size in sizes if size.fits), key=lambda size: size.cluster.nodes)
    result = []
    for name in dict.fromkeys(size.cluster.instance.name for size in sizes if size.fits):
        knee, *further = (size for size in by_count if size.cluster.instance.name == name)
        per_node = knee.tokens_per_second / knee.cluster.nodes
        for size in further:
            added = (size.tokens_per_second - knee.tokens_per_second) / (size.cluster.nodes - knee.cluster.nodes)
            if added >= _WORTH * per_node:
                knee, per_node = size, max(per_node, size.tokens_per_second / size.cluster.nodes)
        result.append(knee)
    return result


def time_and_cost(model: Model, estimate: Estimate) -> tuple[str, str]:
    """Days and USD of the run with their intervals; without tokens, the throughput and the cost per million."""
    return (run_time(estimate) or rate(model, estimate), run_cost(estimate) or cost_per_million(model, estimate))


@dataclass(frozen=True, kw_only=True)
class ClusterSizes:
    """Clusters with the best plan on each, and the smallest, the fastest, the cheapest and the knees among them.

    Examples
    --------
    >>> import smp_advisor as smpa
    >>> advice = smpa.advise("7B", "ml.p4d.24xlarge", tokens="20B", library="fsdp")
    >>> advice.compare_clusters(counts=(1, 2, 4)).smallest.name
    '1 x ml.p4d.24xlarge'
    """

    model: Model = field(repr=False)
    sizes: tuple[ClusterSize, ...] = field(repr=False)
    """Every searched cluster, with those that fit no plan."""
    goal: Goal = "smallest"
    limits: Limits = field(default_factory=Limits)
    requested: Cluster | None = None
    """The cluster that stays unless another one surely saves money."""
    complete: bool = True
    """False if the search was interrupted; the sizes are those searched by then."""

    @property
    def chosen(self) -> ClusterSize | None:
        """The answer: the best cluster for the goal within the limits; None if there is none."""
        return choose(self.sizes, self.goal, self.limits, self.requested)

    @property
    def smallest(self) -> ClusterSize | None:
        """The cluster with the lowest price per hour on which a plan fits; None if none fits."""
        return choose(self.sizes, "smallest", Limits())

    @property
    def fastest(self) -> ClusterSize | None:
        """The fastest cluster; None if none fits."""
        return choose(self.sizes, "fastest", Limits())

    @property
    def cheapest(self) -> ClusterSize | None:
        """The cluster with the lowest cost of the run; None if none fits or has a price."""
        return choose(self.sizes, "cheapest", Limits())

    @property
    def knees(self) -> tuple[ClusterSize, ...]:
        """The knee of each instance type: beyond it, further nodes add less than half of a node's speed."""
        return tuple(knees(self.sizes))

    @property
    def pareto(self) -> tuple[ClusterSize, ...]:
        """Clusters that fit and that no other one beats in both days and cost, fastest first."""
        priced = sorted(
            (size for size in self.sizes if size.fits and size.usd is not None),
            key=lambda size: (-size.tokens_per_second, size.usd or 0.0),
        )
        best: list[ClusterSize] = []
        for size in priced:
            if not best or (size.usd or 0.0) < (best[-1].usd or 0.0):
                best.append(size)
        return tuple(best)

    @property
    def nearest(self) -> ClusterSize | None:
        """The cluster whose GPU is the nearest to the memory that a plan needs, if no plan fits on any; else None."""
        searched = [(size.nearest_gib, size) for size in self.sizes if size.nearest_gib is not None]
        if not searched or any(size.fits for size in self.sizes):
            return None
        return min(searched, key=lambda pair: pair[0] / pair[1].cluster.instance.usable_gpu_memory_gib)[1]

    @property
    def own(self) -> ClusterSize | None:
        """The requested cluster; None if there is none or no plan fits on it."""
        return next((size for size in self.sizes if size.fits and size.cluster == self.requested), None)

    @property
    def reference(self) -> ClusterSize | None:
        """The cluster that savings refer to: the requested one if it fits, else the chosen one."""
        return self.own or self.chosen

    def to_frame(self) -> pd.DataFrame:
        """One row per cluster: speed, days and USD with their 95 % intervals, memory, saving over the requested one."""
        knee, chosen, reference = {id(size) for size in self.knees}, self.chosen, self.reference
        rows = []
        for size in self.sizes:
            now = size.estimate
            figures: dict[str, Any] = {
                "instance": size.cluster.instance.name,
                "nodes": size.cluster.nodes,
                "gpus": size.cluster.gpus,
                "library": size.library,
                "fits": size.fits,
                "needed_gib": size.nearest_gib if now is None else now.needed_gib,
                "usd_per_hour": size.cluster.usd_per_hour,
                "global_batch": None if now is None else now.global_batch_size,
            }
            ranges: dict[str, tuple[float | None, tuple[float, float] | None]] = (
                dict.fromkeys(("tokens_per_second", "days", "usd"), (None, None))
                if now is None
                else {
                    "tokens_per_second": (now.tokens_per_second, now.tokens_per_second_range),
                    "days": (now.days, now.days_range),
                    "usd": (now.usd_total, now.usd_total_range),
                }
            )
            for name, (value, ends) in ranges.items():
                low, high = ends or (None, None)
                figures |= {name: value, f"{name}_low": low, f"{name}_high": high}
            shares = None if reference is None or not size.fits else saving(size, reference)
            rows.append(
                figures
                | {"usd_per_million_tokens": None if now is None else now.usd_per_million_tokens}
                | dict(zip(("saving", "saving_low", "saving_high"), shares or (None, None, None), strict=True))
                | {"within_limits": size.fits and within(size, self.limits), "knee": id(size) in knee}
                | {"chosen": size is chosen}
            )
        return frame_of(rows)

    def lines(self) -> list[str]:
        """Return the chosen cluster with its figures, what it saves, the knee, and how many clusters were compared."""
        chosen, count = self.chosen, len(self.sizes)
        compared = f"{plural(count, 'cluster')} compared{'' if self.complete else ', then it was stopped'}."
        if chosen is None:
            return [f"{self.refusal()}.", compared]
        verdict = ""
        if count > 1 or self.limits:
            stays = chosen is self.own and chosen is not choose(self.sizes, "cheapest", self.limits)
            verdict = f" {_GOALS[self.goal]}" if count > 1 else " is"
            if stays and self.own is not None and self.goal == "cheapest" and count > 1:
                verdict = " stays, because no cluster is surely cheaper"
            if self.limits:
                surely = within(chosen, self.limits, surely=True)
                verdict += f" {self.limits.words}, {'' if surely else 'though not '}with its entire interval"
        result = [f"{chosen.name}{verdict}: {self._figures(chosen)}."]
        if count == 1:
            return result
        return [*result, *self._next_to(chosen), *self._saving(chosen), *self._knee(chosen), compared]

    def _next_to(self, chosen: ClusterSize) -> list[str]:
        """Clusters that are better by less than counts, and the one with the lowest price per hour."""
        best, least = choose(self.sizes, self.goal, self.limits, equal=0), self.smallest
        lines = []
        if best is not None and best is not chosen and chosen is not self.own:
            rule = f"Within {percent(NEAR_BEST)}, the lower price per hour decides"
            lines.append(f"{rule}: {best.name} takes {self._figures(best)}.")
        if least is not None and not self.limits and hourly(least.cluster) < hourly(chosen.cluster):
            price = f"{least.name} has the lowest price, {hourly(least.cluster):,.2f} USD per hour"
            lines.append(f"{price}: {self._figures(least)}.")
        return lines

    def _figures(self, size: ClusterSize) -> str:
        now = size.estimate
        return "no plan fits" if now is None else ", ".join(filter(None, time_and_cost(self.model, now)))

    def _saving(self, chosen: ClusterSize) -> list[str]:
        own = self.own
        if own is None or self.goal != "cheapest":
            return []
        if own is not chosen and not within(own, self.limits):
            return [f"{own.name} is beyond the limit: {self._figures(own)}."]
        cheaper = chosen if own is not chosen else choose(self.sizes, "cheapest", self.limits)
        shares = None if cheaper is None else saving(cheaper, own)
        if cheaper is None or shares is None or cheaper is own:
            return []
        point, low, high = shares
        share = f"{'' if point >= 0 else '-'}{percent(point)} ({100 * low:.0f} to {100 * high:.0f})"
        unresolved = f"The difference in cost of {share} is not resolved: zero is within its interval."
        if own is chosen:
            best = f"{cheaper.name} has the lowest estimate: {self._figures(cheaper)}."
            return [] if saves(cheaper, own) else [best, unresolved]
        if saves(chosen, own):
            return [f"It saves {share} over {own.name}: {self._figures(own)}."]
        return [f"{own.name} may exceed the limit: {self._figures(own)}. {unresolved}"]

    def _knee(self, chosen: ClusterSize) -> list[str]:
        kind = chosen.cluster.instance.name
        knee = next((size for size in self.knees if size.cluster.instance.name == kind), None)
        counts = [size.cluster.nodes for size in self.sizes if size.cluster.instance.name == kind]
        most = max(counts)
        if knee is None or most == min(counts):
            return []
        if knee.cluster.nodes < most:
            nodes = knee.cluster.nodes
            return [f"Up to {nodes} nodes of {kind}, more pay: beyond, each adds less than half a node's speed."]
        return [f"Up to {most} nodes of {kind}, each adds at least half a node's speed."]

    def refusal(self, enough: ClusterSize | None = None) -> str:
        """Why no cluster is the answer, and the nearest one or a larger one that is enough; without its period."""
        count = len(self.sizes)
        if not any(size.fits for size in self.sizes):
            best, near = self.nearest, ""
            if best is not None and best.nearest_gib is not None:
                usable = gib(best.cluster.instance.usable_gpu_memory_gib)
                near = f": the nearest is {best.name}, with {gib(best.nearest_gib)} needed of {usable}"
            return f"No plan fits {self.model.name} on any of these {count} clusters{near}"
        nearest = {"fastest": self.fastest if self.limits.max_days else None}
        nearest["cheapest"] = self.cheapest if self.limits.max_usd or self.limits.max_gpu_hours else None
        parts = [
            f"the {title} is {size.name} ({self._figures(size)})" if count > 1 else f"it needs {self._figures(size)}"
            for title, size in nearest.items()
            if size is not None
        ]
        if enough is not None:
            parts.append(f"{enough.name} would be enough ({self._figures(enough)})")
        where = f"None of {count} clusters trains" if count > 1 else f"{self.sizes[0].name} does not train"
        return f"{where} {self.model.name} {self.limits.words}: {'; '.join(dict.fromkeys(parts))}"

    def cells(self, size: ClusterSize) -> tuple[str, str, str, str, str, str]:
        """Return the texts of a row: cluster, library, time, cost, memory, notes."""
        if size.estimate is None:
            needs = "no plan" if size.nearest_gib is None else f"needs {gib(size.nearest_gib)}"
            return (size.name, size.library, "does not fit", "", needs, "")
        notes = (
            "chosen" if size is self.chosen else "",
            "knee" if any(size is knee for knee in self.knees) else "",
            "" if within(size, self.limits) else "beyond the limit",
        )
        time, money = time_and_cost(self.model, size.estimate)
        return (size.name, size.library, time, money, gib(size.estimate.needed_gib), ", ".join(filter(None, notes)))

    def table(self) -> Table:
        """Return the clusters: all of a short table, else the ones that no other beats, the knees and the answer."""
        shown = self.sizes
        if len(shown) > _SHOWN:
            best = {id(size) for size in (*self.pareto, *self.knees)} | {id(self.chosen), id(self.reference)}
            shown = tuple(size for size in shown if id(size) in best)[: 2 * _SHOWN]
        return Table(columns=_COLUMNS, rows=[*map(self.cells, shown)])

    def rows(self) -> list[str]:
        return [f"  {line}" for line in self.table().lines()]

    def __str__(self) -> str:
        return "\n".join([*self.lines(), "", *self.rows()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        lines = "".join(f"<li>{escape(line)}</li>" for line in self.lines())
        return f'<div class="smp-sizes"><ul>{lines}</ul>{self.table().html()}</div>'


_FEWER = (8, 4, 2)
"""Divisors of the number of nodes that are tried next to a single node."""
_CHEAPER = 1.5
"""Ratio of the costs per token from which fewer nodes are named although they are slower."""


def fewer_nodes(question: Question, chosen: ClusterSize) -> str:
    """Return one sentence where fewer nodes of the same type are as fast, or much cheaper; empty elsewhere."""
    cluster, speed = chosen.cluster, chosen.tokens_per_second
    counts = sorted({1, *(cluster.nodes // part for part in _FEWER)} - {0, cluster.nodes})
    for nodes in counts:
        size = best_on(question, Cluster(cluster.instance, nodes))
        now = size.estimate
        if now is None:
            continue
        figures = f"{rate(question.request.model, now)}, {cost_per_million(question.request.model, now)}"
        own = "" if chosen.estimate is None else rate(question.request.model, chosen.estimate)
        name = plural(nodes, "node")
        are, it = ("is", "it trains") if nodes == 1 else ("are", "they train")
        if size.tokens_per_second >= speed * (1 - NEAR_BEST):
            return f"{name} {are} as fast as {cluster.nodes}: {figures} instead of {own}."
        if size.tokens_per_second / nodes >= _CHEAPER * speed / cluster.nodes:
            return (
                f"This cluster is large for the model: {name} {are} cheaper by"
                f" {percent(1 - speed / cluster.nodes * nodes / size.tokens_per_second)} per token; {it} at {figures}."
            )
    return ""


_ALL = 8
"""Numbers of nodes between two that were searched, up to which all of them are searched next."""
_ABOVE = 32
"""Numbers of nodes above the fastest cluster that are all searched."""


def _between(
    question: Question, goal: Goal, limits: Limits, sizes: list[ClusterSize], progress: Progress | None
) -> None:
    """Add numbers of nodes between those that were searched, until those next to the answer are.

    Whether a number fits depends on its divisors, too: every smaller number that costs less per hour is searched for
    the smallest without limits. Else the numbers are halved toward the answer, toward the best cluster before values
    within 3 % of it count as equal, and toward those from which the runs of each instance type are surely within the
    limits. A number away from these that its divisors alone favor is not found.
    """
    is_first = goal == "smallest" and not limits
    while trials := _smaller(question, goal, limits, sizes) if is_first else _near(goal, limits, sizes):
        total = len(sizes) + len(trials)
        for cluster in trials:
            if progress is not None:
                progress(len(sizes), total, _name(cluster))
            sizes.append(best_on(question, cluster))
            if is_first and sizes[-1].fits:
                break
    types = list(dict.fromkeys(size.cluster.instance.name for size in sizes))
    sizes.sort(key=lambda size: (types.index(size.cluster.instance.name), size.cluster.nodes))


def _smaller(question: Question, goal: Goal, limits: Limits, sizes: Sequence[ClusterSize]) -> list[Cluster]:
    """Clusters that cost less per hour than the chosen one and were not searched, the cheapest first."""
    chosen, searched = choose(sizes, goal, limits), {size.cluster for size in sizes}
    if chosen is None:
        return []
    clusters = []
    for machine in dict.fromkeys(size.cluster.instance for size in sizes):
        fitting = (size.cluster.nodes for size in sizes if size.fits and size.cluster.instance == machine)
        smaller = (Cluster(machine, nodes) for nodes in range(1, min(fitting, default=1)))
        is_chosen = machine == chosen.cluster.instance  # also without a price
        clusters += [of for of in smaller if is_chosen or hourly(of) < hourly(chosen.cluster)]
    clusters = [cluster for cluster in clusters if cluster not in searched and holds_parameters(question, cluster)]
    return sorted(clusters, key=lambda cluster: (hourly(cluster), cluster.nodes))


def _near(goal: Goal, limits: Limits, sizes: Sequence[ClusterSize]) -> list[Cluster]:
    """Clusters that were not searched, next to the best ones and where the runs of a type pass the limits."""
    able = [size for size in sizes if size.fits and within(size, limits)]
    sure = [size for size in able if within(size, limits, surely=True)]
    chosen = choose(sizes, goal, limits)
    if chosen is None:
        return []

    def merit(size: ClusterSize) -> float:
        return size.tokens_per_second if goal == "fastest" else -(size.usd or math.inf)

    best = chosen, max(sure or able, key=merit)
    are_best, are_sure = {id(size) for size in best}, {id(size) for size in sure}

    def may_win(low: ClusterSize, high: ClusterSize) -> bool:
        if goal == "fastest":
            return max(low.tokens_per_second, high.tokens_per_second) > chosen.tokens_per_second
        if goal == "smallest":
            return hourly(low.cluster) < hourly(chosen.cluster)
        least = min(low.usd or math.inf, high.usd or math.inf)
        return bool(least <= (chosen.usd or 0.0) * (1 + NEAR_BEST))

    numbers: dict[Cluster, None] = {}
    ordered = sorted(sizes, key=lambda size: (size.cluster.instance.name, size.cluster.nodes))
    for low, high in pairwise(ordered):
        machine, first, last = low.cluster.instance, low.cluster.nodes + 1, high.cluster.nodes
        if machine != high.cluster.instance or first == last:
            continue
        is_best = bool({id(low), id(high)} & are_best)
        if is_best and last - first < _ALL:
            numbers |= {Cluster(machine, number): None for number in range(first, last)}
        elif is_best or ((id(low) in are_sure) != (id(high) in are_sure) and may_win(low, high)):
            numbers[Cluster(machine, (first + last) // 2)] = None
    return list(numbers) or (_around(goal, chosen, able, sizes) if limits else [])


def _around(goal: Goal, chosen: ClusterSize, able: list[ClusterSize], sizes: Sequence[ClusterSize]) -> list[Cluster]:
    """Clusters next to the chosen one, and for the fastest those above it that may be within the limits."""
    machine, nodes = chosen.cluster.instance, chosen.cluster.nodes
    most = nodes + _ALL // 2
    if goal == "fastest":
        largest = max(size.cluster.nodes for size in able if size.cluster.instance == machine)
        most = max(most, min(largest, nodes + _ABOVE))
    searched = {size.cluster for size in sizes}
    around = (Cluster(machine, number) for number in range(max(1, nodes - _ALL // 2), most))
    return [cluster for cluster in around if cluster not in searched]


def _name(cluster: Cluster) -> str:
    return f"{cluster.nodes} x {cluster.instance.name}"


def compare(question: Question, places: Places, limits: Limits, progress: Progress | None = None) -> ClusterSizes:
    """Search the clusters of a question. An interrupt ends the search with the clusters searched by then."""
    sizes: list[ClusterSize] = []
    clusters = places.clusters
    try:
        for done, cluster in enumerate(clusters):
            if progress is not None:
                progress(done, len(clusters), _name(cluster))
            sizes.append(best_on(question, cluster))
        if places.any_number:
            _between(question, places.goal, limits, sizes, progress)
        if progress is not None:
            progress(len(sizes), len(sizes), "done")
        complete = True
    except KeyboardInterrupt:
        if not sizes:
            raise
        complete = False
    return ClusterSizes(
        model=question.request.model,
        sizes=tuple(sizes),
        goal=places.goal,
        limits=limits,
        requested=places.requested,
        complete=complete,
    )
