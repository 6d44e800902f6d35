"""The charts of an advice by name, and the rank map."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from smp_advisor.arguments import require_types
from smp_advisor.charts import drawings
from smp_advisor.charts.chart import Chart
from smp_advisor.charts.drawings import RankColumn
from smp_advisor.charts.modules import modules_chart
from smp_advisor.charts.plans import alternatives_chart, clusters_chart
from smp_advisor.charts.step import memory_chart, time_chart
from smp_advisor.costs import estimate as estimated
from smp_advisor.errors import AdvisorError
from smp_advisor.guidance.report import plan_of, ranks_of
from smp_advisor.wording import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.recommended import Recommended
    from smp_advisor.libraries.plan import Plan

__all__ = ["CHARTS", "chart_of"]


_COLUMNS = {
    "stage": ("stage", "P"),
    "tensor_slice": ("tensor slice", "T"),
    "context_slice": ("context slice", "C"),
    "experts": ("experts", "E"),
    "shard": ("shard", "S"),
    "replica": ("replica", "R"),
}
"""Name and letter of each column of a rank map."""
_MOST_NODES = 16


def ranks_chart(advice: Recommended, estimate: Estimate, by: int = 0) -> Chart:
    """Stage, slices, shard and replica of every GPU of the first nodes, in the colors of column `by`."""
    table = ranks_of(advice, estimate.plan, None)
    ranks = table.ranks
    nodes = min(ranks.nodes, _MOST_NODES)
    count = nodes * ranks.gpus_per_node
    degrees = {name: degree for name, degree in ranks.degrees.items() if degree > 1 and name in _COLUMNS}
    columns = [
        RankColumn(*_COLUMNS[name], getattr(ranks, name)[:count].tolist()) for name in _COLUMNS if name in degrees
    ]
    letters = ", ".join(
        f"{_COLUMNS[name][1]}: {_COLUMNS[name][0]} (of {degrees[name]:,})" for name in _COLUMNS if name in degrees
    )
    more = f"The first {plural(nodes, 'node')} of {ranks.nodes}." if ranks.nodes > nodes else ""
    description = " ".join(filter(None, (*table.summary, more)))
    colored = by if 0 <= by < len(columns) else 0
    return Chart(
        title="Contents of every GPU",
        draw=partial(drawings.ranks, columns, nodes, ranks.gpus_per_node, colored, description),
        columns=("Node", "GPU", "Rank", *(column.name.capitalize() for column in columns)),
        rows=tuple(
            (
                str(ranks.node[index]),
                str(ranks.gpu[index]),
                str(ranks.rank[index]),
                *(str(column.values[index]) for column in columns),
            )
            for index in range(count)
        ),
        notes=tuple(filter(None, (letters and f"{letters}.", *table.summary, more))),
        choices=tuple(column.name for column in columns),
    )


CHARTS: Mapping[str, Callable[[Recommended, Estimate], Chart]] = {
    "memory": memory_chart,
    "time": time_chart,
    "alternatives": alternatives_chart,
    "clusters": clusters_chart,
    "ranks": ranks_chart,
    "modules": modules_chart,
}
"""Function that makes each chart for a plan of the advice."""


def chart_of(advice: Recommended, name: str, plan: Plan | int | None = None) -> Chart:
    """A chart of a plan, see `Advice.chart`."""
    require_types({"name": (name, str)}, "chart")
    chosen = plan_of(advice, plan)
    own = chosen == advice.estimate.plan
    estimate = advice.estimate if own else estimated(advice.model, advice.cluster, advice.job, chosen)
    if name not in CHARTS:
        raise AdvisorError(f"There is no chart {name!r:.60}: name one of {', '.join(CHARTS)}.")
    return CHARTS[name](advice, estimate)
