"""The clusters of a question: their days and cost, the answer, and the knee of each instance type."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from smp_advisor.guidance.wording import gib
from smp_advisor.sizing.answer import sentences
from smp_advisor.sizing.choice import Goal, choose, knees, within
from smp_advisor.sizing.cluster_size import ClusterSize, saving
from smp_advisor.sizing.figures import time_and_cost
from smp_advisor.sizing.limits import Limits
from smp_advisor.sizing.table import table_html, table_lines
from smp_advisor.uninterrupted import uninterrupted

if TYPE_CHECKING:
    import pandas as pd

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.workload.model import Model

__all__ = ["ClusterSizes"]

_SHOWN = 24
"""Most rows of the text and the HTML; the DataFrame has all."""


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

    def to_frame(self) -> pd.DataFrame:
        """One row per cluster: speed, days and USD with their 95 % intervals, memory, saving over the requested one."""
        with uninterrupted():
            import pandas as pd

        marked = {id(size) for size in self.knees}
        chosen, reference = self.chosen, self.reference
        return pd.DataFrame([_figures(size, reference) | self._marks(size, chosen, marked) for size in self.sizes])

    def _marks(self, size: ClusterSize, chosen: ClusterSize | None, knee: set[int]) -> dict[str, Any]:
        return {
            "within_limits": size.fits and within(size, self.limits),
            "knee": id(size) in knee,
            "chosen": size is chosen,
        }

    @property
    def nearest(self) -> ClusterSize | None:
        """The cluster whose GPU is the nearest to the memory that a plan needs, if no plan fits on any; else None."""
        searched = [size for size in self.sizes if size.nearest_gib is not None]
        return min(searched, key=_excess, default=None) if not any(size.fits for size in self.sizes) else None

    @property
    def reference(self) -> ClusterSize | None:
        """The cluster that savings refer to: the requested one if it fits, else the chosen one."""
        return self.own or self.chosen

    @property
    def own(self) -> ClusterSize | None:
        """The requested cluster; None if there is none or no plan fits on it."""
        return next((size for size in self.sizes if size.fits and size.cluster == self.requested), None)

    def lines(self) -> list[str]:
        """The answer in a few short sentences."""
        return sentences(self)

    def __str__(self) -> str:
        return "\n".join([*self.lines(), "", *self.rows()])

    def rows(self) -> list[str]:
        """The table as lines of text."""
        return [f"  {line}" for line in table_lines([_COLUMNS, *map(self.cells, self._shown())])]

    def _shown(self) -> tuple[ClusterSize, ...]:
        """Rows of the text: all of a single type, else the ones that no other beats, the knees and the answer."""
        if len(self.sizes) <= _SHOWN:
            return self.sizes
        best = {id(size) for size in (*self.pareto, *self.knees)} | {id(self.chosen), id(self.reference)}
        return tuple(size for size in self.sizes if id(size) in best)[: 2 * _SHOWN]

    def cells(self, size: ClusterSize) -> tuple[str, str, str, str, str, str]:
        """Texts of a row: cluster, library, time, cost, memory, notes."""
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

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        lines = "".join(f"<li>{escape(line)}</li>" for line in self.lines())
        table = table_html([_COLUMNS, *map(self.cells, self._shown())])
        return f'<div class="smp-sizes"><ul>{lines}</ul>{table}</div>'


_COLUMNS = ("cluster", "library", "time (95 %)", "cost (95 %)", "memory per GPU", "")


def _excess(size: ClusterSize) -> float:
    """Memory of the nearest plan over that of the GPU."""
    return (size.nearest_gib or 0.0) / size.cluster.instance.usable_gpu_memory_gib


def _figures(size: ClusterSize, reference: ClusterSize | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "instance": size.cluster.instance.name,
        "nodes": size.cluster.nodes,
        "gpus": size.cluster.gpus,
        "library": size.library,
        "fits": size.fits,
        "needed_gib": size.nearest_gib if size.estimate is None else size.estimate.needed_gib,
        "usd_per_hour": size.cluster.usd_per_hour,
    }
    now = size.estimate
    low, high = (None, None) if now is None else now.tokens_per_second_range
    days, usd = (None, None) if now is None else (now.days_range, now.usd_total_range)
    per_million = None if now is None else now.usd_per_million_tokens
    shares = None if reference is None or not size.fits else saving(size, reference)
    return row | {
        "global_batch": None if now is None else now.global_batch_size,
        "tokens_per_second": None if now is None else now.tokens_per_second,
        "tokens_per_second_low": low,
        "tokens_per_second_high": high,
        "days": size.days,
        "days_low": None if days is None else days[0],
        "days_high": None if days is None else days[1],
        "usd": None if now is None else now.usd_total,
        "usd_low": None if usd is None else usd[0],
        "usd_high": None if usd is None else usd[1],
        "usd_per_million_tokens": per_million,
        "saving": None if shares is None else shares[0],
        "saving_low": None if shares is None else shares[1],
        "saving_high": None if shares is None else shares[2],
    }
