"""The rank map of a plan as a picture of its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.drawing.chart import Chart
from smp_advisor.guidance.report import ranks_of
from smp_advisor.wording import plural

if TYPE_CHECKING:
    from smp_advisor.advice import Advice
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.drawing.ranks import RankColumn

__all__ = ["ranks_chart"]

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


def ranks_chart(advice: Advice, estimate: Estimate) -> Chart:
    """Stage, slices, shard and replica of every GPU of the first nodes."""
    table = ranks_of(advice, estimate.plan, None)
    ranks = table.ranks
    nodes = list(range(min(ranks.nodes, _MOST_NODES)))
    count = len(nodes) * ranks.gpus_per_node
    columns: list[RankColumn] = [
        {
            "name": title,
            "letter": letter,
            "values": getattr(ranks, name)[:count].tolist(),
            "degree": ranks.degrees[name],
        }
        for name, (title, letter) in _COLUMNS.items()
        if ranks.degrees[name] > 1
    ]
    letters = ", ".join(f"{column['letter']}: {column['name']} (of {column['degree']:,})" for column in columns)
    more = f"The first {plural(len(nodes), 'node')} of {ranks.nodes}." if ranks.nodes > len(nodes) else ""
    return Chart(
        kind="ranks",
        title="Contents of every GPU",
        data={
            "gpus_per_node": ranks.gpus_per_node,
            "nodes": nodes,
            "columns": columns,
            "by": 0,
            "description": " ".join(filter(None, (*table.summary, more))),
        },
        columns=("Node", "GPU", "Rank", *(column["name"].capitalize() for column in columns)),
        rows=tuple(
            (
                str(ranks.node[index]),
                str(ranks.gpu[index]),
                str(ranks.rank[index]),
                *(str(column["values"][index]) for column in columns),
            )
            for index in range(count)
        ),
        notes=tuple(filter(None, (letters and f"{letters}.", *table.summary, more))),
    )
