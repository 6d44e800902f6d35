"""Uncertainty of the step time: intervals by kind of code and plan, draws of the constants, spreads of sources."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cache
from operator import attrgetter, mul
from typing import TYPE_CHECKING

import numpy as np

from smp_advisor.core.elementwise import where
from smp_advisor.core.files import data_file, rows
from smp_advisor.costs.constants import constants
from smp_advisor.workload.stack import stacks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.core.elementwise import Floats
    from smp_advisor.libraries.layout import Layout


USERS = "users"
ANY = "any"
"""Entry of a kind of plan with too few published runs for figures of its own."""


TWO_SIDED = 1.96
"""Quantile of a 95 % interval of the normal distribution."""


def kind_correlation() -> float:
    """Correlation of a source's errors of plans of two kinds. Errors of one kind are nearly equal."""
    return float(data_file("costs", "intervals")["kind_correlation"])


@cache
def stack_group(stack: str) -> str:
    """``host`` (hosts coordinate every exchange, SMP v1), ``tuned`` (operations share kernels) or ``users``."""
    entry = stacks().get(stack)
    if entry is None:
        return USERS
    if entry.collectives == "host":
        return "host"
    return "tuned" if entry.elementwise == "fused" else USERS


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
    return kind_names(one_node=cluster.nodes == 1)[plan_divisions(layout)]


@cache
def kind_names(*, one_node: bool) -> NDArray[np.str_]:
    """Return the names of the kinds of plans on one or several nodes, in the order of `DIVISIONS`."""
    return np.char.add(DIVISIONS, ", one node" if one_node else ", nodes")


@dataclass(frozen=True, kw_only=True, slots=True)
class Doubt:
    """Shares of a step that determine its interval: each of its parts has an error of its own."""

    host: float = 0.0
    across_nodes: float = 0.0
    """Share of exposed communication across nodes."""
    in_node: float = 0.0
    """Share of exposed communication inside nodes."""
    offloaded: bool = False
    """Whether activations are copied to the host."""
    extrapolated: float = 0.0
    """Share of the step that hosts take to coordinate it (SMP v1), times the logarithm of the number of blocks relative
    to that of the measured runs: whether that time is one per step or one per block is open."""
    unmeasured: bool = False
    """Whether no published run used this GPU."""
    kernel: float = 0.0
    """Share of attention, if nobody named its kernel."""
    code: bool = False
    """Whether nobody named the kind of training code."""
    fp8: float = 0.0
    """Share of products in fp8."""
    adapter: bool = False
    """Whether an adapter is trained."""
    experts: bool = False
    """Whether the model is a mixture of experts."""


@cache
def has_runs(gpu: str) -> bool:
    """Return whether published runs used a GPU, by its name."""
    words = gpu.replace("-", " ").split()
    return any(word in data_file("costs", "intervals")["measured"] for word in words)


def step_time_factors(doubt: Doubt) -> tuple[float, float]:
    """Factors of the predicted step time between which 95 % of the measured ones are.

    The squares of the errors of the parts add up, each with its share of the step: that of every step, that of a source
    which nobody has seen, as your script and cluster are, and one for each thing that was guessed. Runs are faster than
    predicted as often as slower.
    """
    return _ends(math.hypot(_composition()["everything"], _unseen(doubt)))


@cache
def _composition() -> dict[str, float]:
    return dict(data_file("costs", "intervals")["composition"])


def _unseen(doubt: Doubt) -> float:
    """One standard deviation of what one measured run of the same code shows: the source, and what was guessed."""
    source, weights = _weights()
    return math.hypot(source, *map(mul, weights, _shares(doubt)))


@cache
def _weights() -> tuple[float, tuple[float, ...]]:
    of = _composition()
    return of["source"], tuple(of[field.name] for field in fields(Doubt))


_shares = attrgetter(*(field.name for field in fields(Doubt)))


def _ends(deviation: float) -> tuple[float, float]:
    return math.exp(-TWO_SIDED * deviation), math.exp(TWO_SIDED * deviation)


@cache
def spreads(stack: str, kind: str) -> tuple[float, float]:
    """Standard deviations of the logarithm of measured over predicted step time: between sources, and within one."""
    groups = data_file("costs", "intervals")
    entries = groups.get(stack_group(stack)) or groups[USERS]
    entry = entries.get(kind) or entries[ANY]
    return float(entry["source_spread"]), float(entry["run_spread"])


_LEAST_ALIKE = 0.5
"""Least share of the variance of a configuration's error that stays: 95 % of runs of one source with nearly the same
figures are within 20 % of each other (57 pairs of 13 sources, benchmarks/accuracy_rows/own_run.py)."""


def narrowed(kind: str, stack: str, width: float, doubt: Doubt) -> tuple[float, float]:
    """`step_time_factors` after measured runs, for a relative `width` of the posterior distribution.

    What the runs teach is first the error of the source, with all that was guessed about its code, and then that of the
    configuration, as far as the plans are alike.
    """
    source, run = spreads(stack, kind)
    own = run * data_file("costs", "transfer")["time"]["configuration"]
    left = width**2 * (source**2 + own**2)
    unseen = min(max(left / own**2 - 1, 0.0) * (own / source) ** 2, 1.0)
    alike = min(max(left / own**2, _LEAST_ALIKE), 1.0)
    return _ends(math.hypot(math.sqrt(alike) * _composition()["everything"], math.sqrt(unseen) * _unseen(doubt)))


DRAWS = 64


@cache
def constant_draws() -> dict[str, NDArray[np.float64]]:
    """Joint draws of the constants fitted to published runs, from their posterior distribution, shape (64,) each.

    ``data/draws.csv`` has the logarithms of drawn over committed values. They come from the Hessian of the last
    Gauss-Newton step of the fit, in which every source has an effect of its own, and from the priors. Constants that
    the runs determine only together, such as the rates of products and of memory, are correlated. A share, committed
    below 1, never exceeds 1; a factor, committed at 1, lies on both sides. The draws are the same at every call.
    """
    table, drawn = constants(), rows("smp_advisor.costs", "data/draws.csv")
    logarithms = {name: np.array([row[name] for row in drawn], dtype=np.float64) for name in drawn[0]}
    return {
        name: np.minimum(table[name].value * np.exp(of), 1.0 if table[name].value < 1 else np.inf)
        for name, of in logarithms.items()
    }


def comparison_spread(stack: str, kind: str, to_kind: str, widths: tuple[float, float] = (1.0, 1.0)) -> float:
    """One standard deviation of the logarithm of the quotient of two step times on one cluster (`kind_correlation`)."""
    if kind == to_kind:
        return 0.0
    first, second = (width * spreads(stack, of)[0] for width, of in zip(widths, (kind, to_kind), strict=True))
    return math.sqrt(first**2 + second**2 - 2 * kind_correlation() * first * second)
