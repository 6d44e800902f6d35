"""Sweeps: the same training run measured with several plans."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from .arithmetic import kendall_tau, regret

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .plans import Run
    from .table import Row

__all__ = ["Sweep", "sweeps"]

_LEAST_PLANS = 3
# Columns that are equal in a sweep. All its rows do the same work on the same machine.
_FIXED = (
    "family", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq", "gpu", "gpus", "gpus_per_node",
    "intra_node", "inter_node_gbps", "framework", "precision_class", "attention_class", "optimizer", "global_batch",
)  # fmt: skip


@dataclass(frozen=True)
class Sweep:
    """One sweep with the ranking quality of its plans."""

    plans: int
    kendall_tau: float | None
    """None if all measured or all predicted times are equal."""
    regret: float


def sweeps(timed: Iterable[tuple[Row, Run, float, float]]) -> list[Sweep]:
    """Sweeps of at least three plans from tuples (row, run, predicted seconds, measured seconds) per step.

    A plan with several measurements counts with their median.
    """
    groups: dict[tuple[str, ...], dict[tuple[object, ...], list[tuple[float, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row, run, predicted, measured in timed:
        key = tuple(row.text(column) for column in _FIXED)
        groups[key][run.identity].append((predicted, measured))
    result = []
    for plans in groups.values():
        if len(plans) < _LEAST_PLANS:
            continue
        predictions = [pairs[0][0] for pairs in plans.values()]
        medians = [median(pair[1] for pair in pairs) for pairs in plans.values()]
        result.append(Sweep(len(plans), kendall_tau(predictions, medians), regret(predictions, medians)))
    return result
