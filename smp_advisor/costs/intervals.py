"""Intervals of measured step times around predicted ones, by kind of training code and kind of plan."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np

from smp_advisor.elementwise import where
from smp_advisor.workload.stack import stacks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.elementwise import Floats
    from smp_advisor.libraries.layout import Layout

__all__ = [
    "DIVISIONS",
    "kind_names",
    "narrowed",
    "plan_divisions",
    "plan_kinds",
    "spreads",
    "stack_group",
    "step_time_factors",
]

USERS = "users"
ANY = "any"
"""Entry of a kind of plan with too few published runs for figures of its own."""


_TWO_SIDED = 1.96
_TAIL_POWER = 3
"""Pace at which measured runs exclude the tails of published sources; scored by benchmarks/own_run.py."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """Logarithms of measured over predicted step time of one kind of code and plan."""

    low: float
    """2.5 % quantile."""
    high: float
    """97.5 % quantile. It is further from 0 than `low`: runs are slower than predicted more often than faster."""
    source_spread: float
    run_spread: float


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(resources.files("smp_advisor.costs").joinpath("data/intervals.toml").read_text("utf-8"))


def kind_correlation() -> float:
    """Correlation of a source's errors of plans of two kinds. Errors of one kind are nearly equal."""
    return float(_data()["kind_correlation"])


@cache
def _table() -> dict[str, dict[str, _Entry]]:
    """Entries by group of stacks and kind of plan."""
    names = tuple(_Entry.__dataclass_fields__)
    return {
        group: {kind: _Entry(**{name: float(entry[name]) for name in names}) for kind, entry in kinds.items()}
        for group, kinds in _data().items()
        if isinstance(kinds, dict)
    }


@cache
def stack_group(stack: str) -> str:
    """Group of stacks with similar errors.

    ``host``: hosts coordinate every exchange (SMP v1). ``tuned``: element-wise operations share kernels. ``users``: all
    others, and names that are no stack.
    """
    entry = stacks().get(stack)
    if entry is None:
        return USERS
    if entry.collectives == "host":
        return "host"
    return "tuned" if entry.elementwise == "fused" else USERS


def _entry(kind: str, stack: str) -> _Entry:
    groups = _table()
    entries = groups.get(stack_group(stack)) or groups[USERS]
    return entries.get(kind) or entries[ANY]


DIVISIONS = ("replicated", "tensor", "sharded", "pipeline", "offloaded")


def plan_divisions(layout: Layout) -> NDArray[np.int64]:
    """Division of the model by each plan, shape (n,): a position in `DIVISIONS`."""
    division: Floats = where(layout.tensor_parallel_degree > 1, 1, 0)
    division = where(layout.shard_level >= 3, 2, division)
    division = where(layout.pipeline_parallel_degree > 1, 3, division)
    division = where(layout.offload_activations, 4, division)
    return np.asarray(division, dtype=np.int64)


def plan_kinds(layout: Layout, cluster: Cluster) -> NDArray[np.str_]:
    """Kind of each plan, shape (n,): the division of the model, and one or several nodes. Kinds have similar errors."""
    return kind_names(cluster)[plan_divisions(layout)]


def kind_names(cluster: Cluster) -> NDArray[np.str_]:
    """Names of the kinds of plans on a cluster, in the order of `DIVISIONS`."""
    return _kind_names(one_node=cluster.nodes == 1)


@cache
def _kind_names(*, one_node: bool) -> NDArray[np.str_]:
    return np.char.add(DIVISIONS, ", one node" if one_node else ", nodes")


def step_time_factors(kind: str, stack: str = "") -> tuple[float, float]:
    """Factors of the predicted step time between which 95 % of the measured ones are.

    They come from published runs whose entire source was left out of the fit of the constants, as your script and
    cluster are.

    Parameters
    ----------
    kind
        Kind of plan.
    stack
        Name of the kind of training code (`stack_group`).
    """
    entry = _entry(kind, stack)
    return math.exp(entry.low), math.exp(entry.high)


def spreads(kind: str, stack: str = "") -> tuple[float, float]:
    """Standard deviations of the logarithm of the step time between sources, and between runs of one source."""
    entry = _entry(kind, stack)
    return entry.source_spread, entry.run_spread


def narrowed(kind: str, stack: str, width: float) -> tuple[float, float]:
    """`step_time_factors` after measured runs, for a relative `width` of the posterior distribution.

    Without any information (a width of 1) it is the interval of published runs, whose tails are those of sources that
    differ in an unknown way. A measured run of one's own excludes such a source, so the interval approaches that of a
    normal distribution with the spreads between and within sources.
    """
    factors = step_time_factors(kind, stack)
    if width >= 1:
        return factors
    usual = _TWO_SIDED * math.hypot(*spreads(kind, stack))
    ends = [math.log(factor) for factor in factors]
    tails = [abs(end) + (1 - width**_TAIL_POWER) * min(usual - abs(end), 0.0) for end in ends]
    return math.exp(-width * tails[0]), math.exp(width * tails[1])
