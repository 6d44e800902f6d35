"""Ranks of a plan on a cluster: stage, slices, shard and replica of every GPU, and its groups of the SMP library.

Groups, from the ranking mechanism of the SageMaker developer guide: a PP_GROUP holds all stages of a model, a TP_GROUP
all slices of a stage, an RDP_GROUP the GPUs with equal stage and slice, and a DP_GROUP the GPUs with equal stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from smp_advisor.core.tables import Table, frame_of
from smp_advisor.core.words import plural
from smp_advisor.errors import PlanError
from smp_advisor.libraries.groups import data_parallel_degree, reduced_data_parallel_degree, shard_degree
from smp_advisor.libraries.library import plan_fields

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.plan import Plan

    Ints = NDArray[np.int64]

_ORDERS = {"cluster": "DPT", "spread": "TPD"}
PLACEMENTS = (*_ORDERS, "DPT", "DTP", "PDT", "PTD", "TDP", "TPD")
"""Placement strategies of SMP v1. In the orders of letters (D: reduced data, P: pipeline, T: tensor parallelism), the
last letter varies fastest over neighboring ranks. Source: common API of SMP v1, ``placement_strategy``."""

GROUPS = ("PP_GROUP", "TP_GROUP", "RDP_GROUP", "DP_GROUP")


@dataclass(frozen=True, kw_only=True, eq=False)
class RankTable:
    """Contents of every GPU, in the order of ranks."""

    placement: str
    """Order of the letters D, P and T."""
    documented: bool
    """Whether the library documents the order (SMP v1). For others, the cost model's assumption."""
    gpus_per_node: int
    degrees: dict[str, int]
    """Number of different values: stages, slices of each layer, parts of a sequence, parts of the experts, shards of
    the state, and replicas, whose GPUs process the same samples together."""
    columns: dict[str, Ints]
    """Rank, node and number in the node of each GPU; its value for each of `degrees`; and the number of its group for
    each of `GROUPS`, in which groups are numbered by their first rank."""

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return int(self.columns["node"][-1]) + 1

    def members(self, group: str, number: int) -> Ints:
        """Return the ranks of a group, in increasing order: ``members("TP_GROUP", 0)``."""
        members: Ints = self.columns["rank"][self.columns[group] == number]
        return members

    def frame(self) -> pd.DataFrame:
        """Return one row per GPU, in the order of ranks."""
        return frame_of(self.columns)

    @property
    def shown(self) -> list[int]:
        """Nodes in texts and tables: the first ones and the last."""
        return [*range(min(self.nodes, _MOST_NODES) - 1), self.nodes - 1]

    def rows(self, node: int) -> list[tuple[str, list[int]]]:
        """Contents of the GPUs of a node: (title, one number per GPU), of the columns that differ."""
        own = self.columns["node"] == node
        used = [name for name, degree in self.degrees.items() if degree > 1]
        return [(name.replace("_", " "), self.columns[name][own].tolist()) for name in used]

    @property
    def summary(self) -> list[str]:
        """The order of ranks and the groups, one sentence each."""
        order = "The library does not document the order of ranks: this is the order that the cost model assumes."
        if self.documented:
            order = f"Placement {self.placement}: the last letter varies fastest over neighboring ranks."
        size = f"{plural(self.nodes, 'node')} of {plural(self.gpus_per_node, 'GPU')}"
        return [f"{size}. {order}", *map(self._group, GROUPS)]

    def _group(self, name: str) -> str:
        """Return a kind of group: ``TP_GROUP: 64 groups of 2 GPUs, ranks 0, 1; inside a node.``."""
        members = self.members(name, 0)
        numbers = self.columns[name]
        count = int(numbers.max()) + 1
        if len(members) == 1:
            return f"{name}: each GPU alone."
        crossing = any(len(set(self.columns["node"][numbers == n].tolist())) > 1 for n in range(min(count, 64)))
        place = "over several nodes" if crossing else "inside a node"
        ranks = members.tolist() if len(members) <= 4 else [*members[:3].tolist(), "...", members[-1]]
        first = ", ".join(map(str, ranks))
        return f"{name}: {plural(count, 'group')} of {len(members)} GPUs, {place}; the first has ranks {first}."

    def __str__(self) -> str:
        lines = [*self.summary]
        previous = -1
        for node in self.shown:
            if node != previous + 1:
                lines.append(f"Nodes {previous + 1} to {node - 1}: advice.rank_map()")
            previous = node
            lines.append(f"Node {node}")
            table = [("GPU", list(range(self.gpus_per_node))), *self.rows(node)]
            width = max(len(str(number)) for _, numbers in table for number in numbers)
            lines += [f"  {title:<14}" + " ".join(f"{n:>{width}}" for n in numbers) for title, numbers in table]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        gpus = range(self.gpus_per_node)
        nodes = [
            (
                f"Node {node}",
                *("\n".join(f"{title} {numbers[gpu]}" for title, numbers in self.rows(node)) for gpu in gpus),
            )
            for node in self.shown
        ]
        titles = ("Node", *(f"GPU {gpu}" for gpu in gpus))
        return Table(columns=titles, rows=nodes, caption="\n".join(self.summary)).html()


def rank_map(plan: Plan, cluster: Cluster, placement_strategy: str | None = None) -> RankTable:
    """Stage, slices, shard and replica of every GPU."""
    strategy = plan.placement_strategy if placement_strategy is None else placement_strategy
    if strategy not in PLACEMENTS:
        raise PlanError(f"placement_strategy must be one of {', '.join(PLACEMENTS)}, not {strategy!r}.")
    order = _ORDERS.get(strategy, strategy)
    tp, cp = plan.tensor_parallel_degree, plan.context_parallel_degree
    sizes = {"D": data_parallel_degree(plan, cluster) // tp, "P": plan.pipeline_parallel_degree, "T": tp}
    # The place of a rank in the order of its letters is a number in a mixed base: the last letter is the last digit.
    rank = np.arange(cluster.gpus, dtype=np.int64)
    place: dict[str, Ints] = {}
    stride = 1
    for letter in reversed(order):
        place[letter] = rank // stride % sizes[letter]
        stride *= sizes[letter]
    data, stage, slices = place["D"], place["P"], place["T"]
    # Experts and context slices are counted within the data-parallel ranks.
    experts = plan.expert_parallel_degree
    shards = sizes["D"] if plan.shard_optimizer_state else shard_degree(plan, cluster)
    return RankTable(
        placement=order,
        documented="placement_strategy" in plan_fields(plan.library),
        gpus_per_node=cluster.gpus_per_node,
        degrees={
            "stage": sizes["P"],
            "tensor_slice": tp,
            "context_slice": cp,
            "experts": experts,
            "shard": shards,
            "replica": reduced_data_parallel_degree(plan, cluster),
        },
        columns={
            "rank": rank,
            "node": rank // cluster.gpus_per_node,
            "gpu": rank % cluster.gpus_per_node,
            "stage": stage,
            "tensor_slice": slices,
            "context_slice": data % cp,
            "experts": data % experts,
            "shard": data // experts % shards if shards > 1 else np.zeros_like(rank),
            "replica": data // cp,
            "PP_GROUP": _numbered(data * tp + slices),
            "TP_GROUP": _numbered(data * sizes["P"] + stage),
            "RDP_GROUP": _numbered(stage * tp + slices),
            "DP_GROUP": _numbered(stage),
        },
    )


def _numbered(keys: Ints) -> Ints:
    """Return the numbers of equal keys, in the order of their first appearance."""
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    numbers = np.empty(len(first), dtype=np.int64)
    numbers[np.argsort(first)] = np.arange(len(first))
    return numbers[inverse]


_MOST_NODES = 4
"""Nodes in a text or a table, the last one among them."""
