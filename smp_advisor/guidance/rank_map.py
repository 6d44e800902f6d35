"""The rank map of a plan as text, HTML and DataFrame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from smp_advisor.libraries.ranks import COLUMNS, GROUPS
from smp_advisor.uninterrupted import uninterrupted
from smp_advisor.wording import plural, table_html

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from smp_advisor.libraries.ranks import RankMap

_TITLES = {
    "stage": "stage",
    "tensor_slice": "tensor slice",
    "context_slice": "context slice",
    "experts": "experts",
    "shard": "shard",
    "replica": "replica",
}
_PATTERN = ("stage", "tensor_slice", "context_slice", "experts")
"""Columns whose repetition over the nodes is stated. Shards and replicas count on."""
_MOST_NODES = 4
"""Nodes in a text or a table; of longer patterns, the last node as well."""


@dataclass(frozen=True, kw_only=True)
class RankTable:
    """Contents of every GPU of every node: ``print(table)``, a table in notebooks, and `frame`."""

    ranks: RankMap

    def frame(self) -> pd.DataFrame:
        """One row per GPU, in the order of ranks."""
        with uninterrupted():
            import pandas as pd

        columns = {name: getattr(self.ranks, name) for name in COLUMNS}
        return pd.DataFrame(columns | self.ranks.groups)

    @property
    def period(self) -> int:
        """Nodes after which stages and slices repeat."""
        ranks = self.ranks
        grid = np.stack([getattr(ranks, name) for name in _PATTERN]).reshape(len(_PATTERN), ranks.nodes, -1)
        candidates = [n for n in range(1, ranks.nodes + 1) if ranks.nodes % n == 0]
        return next(n for n in candidates if (grid == np.tile(grid[:, :n], (1, ranks.nodes // n, 1))).all())

    @property
    def shown(self) -> list[int]:
        """Nodes in the table: those of one period, of long ones the first and the last."""
        period = self.period
        return list(range(period)) if period <= _MOST_NODES else [*range(_MOST_NODES - 1), period - 1]

    def rows(self, node: int) -> list[tuple[str, list[int]]]:
        """Contents of the GPUs of a node: (title, one number per GPU), of the columns that differ."""
        own = self.ranks.node == node
        return [
            (title, getattr(self.ranks, name)[own].tolist())
            for name, title in _TITLES.items()
            if self.ranks.degrees[name] > 1
        ]

    @property
    def summary(self) -> list[str]:
        """The groups and the repetition, one sentence each."""
        sentences = [
            f"{plural(self.ranks.nodes, 'node')} of {plural(self.ranks.gpus_per_node, 'GPU')}. {self._order}",
            *map(self._group, GROUPS),
        ]
        repeats = self.ranks.nodes // self.period
        if repeats > 1:
            block = "each node" if self.period == 1 else f"each block of {self.period} nodes"
            counts = [
                f"{_TITLES[name]} numbers grow by {step} per repetition"
                for name in ("shard", "replica")
                if (step := self._growth(name)) and self.ranks.degrees[name] > 1
            ]
            again = f" {'; '.join(counts)}." if counts else ""
            again = again[:2].upper() + again[2:]
            sentences.append(f"Stages and slices repeat in {block}.{again}")
        return sentences

    @property
    def _order(self) -> str:
        if not self.ranks.documented:
            return "The library does not document the order of ranks: this is the order that the cost model assumes."
        return f"Placement {self.ranks.placement}: the last letter varies fastest over neighboring ranks."

    def _group(self, name: str) -> str:
        """A kind of group: ``TP_GROUP: 64 groups of 2 GPUs, ranks 0, 1; inside a node.``."""
        members = self.ranks.members(name, 0)
        numbers = self.ranks.groups[name]
        count = int(numbers.max()) + 1
        if len(members) == 1:
            return f"{name}: each GPU alone."
        crossing = any(len(set(self.ranks.node[numbers == n].tolist())) > 1 for n in range(min(count, 64)))
        place = "over several nodes" if crossing else "inside a node"
        return (
            f"{name}: {plural(count, 'group')} of {len(members)} GPUs, {place}; the first has ranks {_listed(members)}."
        )

    def _growth(self, name: str) -> int:
        """Constant growth of a column from one period to the next; 0 without one."""
        values = getattr(self.ranks, name).reshape(self.ranks.nodes // self.period, -1)
        degree = self.ranks.degrees[name]
        steps = (values[1:] - values[:-1]) % degree
        return int(steps.flat[0]) if steps.size and (steps == steps.flat[0]).all() else 0

    def __str__(self) -> str:
        lines = [*self.summary]
        previous = -1
        for node in self.shown:
            if node != previous + 1:
                lines.append(f"Nodes {previous + 1} to {node - 1}: advice.rank_map()")
            previous = node
            lines.append(f"Node {node}")
            table = [("GPU", list(range(self.ranks.gpus_per_node))), *self.rows(node)]
            width = max(len(str(number)) for _, numbers in table for number in numbers)
            lines += [f"  {title:<14}" + " ".join(f"{n:>{width}}" for n in numbers) for title, numbers in table]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        gpus = range(self.ranks.gpus_per_node)
        nodes = [
            (
                f"Node {node}",
                *("\n".join(f"{title} {numbers[gpu]}" for title, numbers in self.rows(node)) for gpu in gpus),
            )
            for node in self.shown
        ]
        titles = ("Node", *(f"GPU {gpu}" for gpu in gpus))
        return table_html([titles, *nodes], caption="\n".join(self.summary))


def _listed(members: NDArray[np.int64]) -> str:
    """Ranks of a group: ``0, 1``, ``0, 8, 16, ..., 120``."""
    if len(members) <= 4:
        return ", ".join(map(str, members.tolist()))
    return ", ".join([*map(str, members[:3].tolist()), "...", str(members[-1])])
