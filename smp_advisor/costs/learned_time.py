"""Correction of predicted step times by the user's measured runs.

A run's error is the logarithm of its measured over its predicted step time. It has four learned quantities
(`TIME_QUANTITIES`: pace of compute, of communication inside a node and across nodes, and of the host) and an error of
its configuration. All are normal with mean zero before the first run. Runs of similar conditions have correlated
quantities (`transfer`), so a measured run corrects similar plans most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from smp_advisor.costs.communication import bus_bytes_per_second
from smp_advisor.costs.constants import constant
from smp_advisor.costs.posterior import Posterior, update
from smp_advisor.costs.transfer import Targets, rule, table, targets
from smp_advisor.costs.uncertainty import run_spread, source_spread
from smp_advisor.costs.world import World
from smp_advisor.workload.calibration import TIME_QUANTITIES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.elementwise import Floats as Numbers
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.workload.calibration import Calibration
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

    Floats = NDArray[np.float64]

__all__ = ["LearnedTime", "Overlap", "Pace", "learned_time", "paces", "seconds_by_quantity"]

_COMPUTE, _IN_NODE, _ACROSS, _HOST = range(len(TIME_QUANTITIES))
_REDUCTION = "data_parallel_seconds"
_GATHERS_PARAMETERS = 3
"""Sharding level from which parameters are gathered in the forward pass, too."""
_OF_PART = {"optimizer_seconds": _HOST, "offload_seconds": _HOST}
_REPEAT = 0.02
"""Spread of two runs of the same job."""
_ROUNDS = 8
_TWO_SIDED = 1.96
_LARGEST = 3.0
"""Largest learned logarithm of a pace: a factor of 20."""


@dataclass(frozen=True, kw_only=True)
class LearnedTime:
    """Corrections of n plans."""

    pace: Floats
    """Factor of the seconds of each of `TIME_QUANTITIES`, shape (n, quantities)."""
    remaining: Floats
    """Factor of all seconds of the plan, shape (n,)."""
    width: Floats
    """Width of the interval of the logarithm of the step time, relative to its width without runs, shape (n,)."""
    quantity_of_part: dict[str, NDArray[np.intp]]
    overlap: Overlap

    def applied(self, seconds: Mapping[str, Numbers]) -> dict[str, Floats]:
        """Corrected seconds by part."""
        rows = np.arange(len(self.remaining))
        paces = {name: self.pace[rows, quantity] for name, quantity in self.quantity_of_part.items()}
        result = {name: values * paces[name] * self.remaining for name, values in seconds.items()}
        exposed = self.overlap.exposed(paces[_REDUCTION], self.pace[:, _COMPUTE])
        return result | {_REDUCTION: exposed * self.remaining}


@dataclass(frozen=True)
class Overlap:
    """Data-parallel communication next to compute, arrays of shape (n,) or (1,).

    The part of the shorter one that is not hidden is the `share` (`data_parallel.py`).
    """

    communication: Floats
    compute: Floats
    share: Floats

    @classmethod
    def of(cls, layout: Layout, seconds: Mapping[str, Numbers], quantity: NDArray[np.intp]) -> Overlap:
        """The seconds of both, from the exposed seconds."""
        forward, backward, recomputed, exposed = (
            np.atleast_1d(np.asarray(seconds[name], dtype=np.float64))
            for name in ("forward_seconds", "backward_seconds", "recomputation_seconds", _REDUCTION)
        )
        gathers = np.atleast_1d(layout.shard_level) >= _GATHERS_PARAMETERS
        compute = backward + recomputed + np.where(gathers, forward, 0.0)
        inside, across = constant("time.contention_in_node"), constant("time.contention_across_nodes")
        share = np.where(quantity == _IN_NODE, inside, across)
        longer = exposed > share * compute
        return cls(np.where(longer, exposed + (1 - share) * compute, exposed / share), compute, share)

    def exposed(self, communication_pace: Floats, compute_pace: Floats) -> Floats:
        """Exposed seconds of communication at other paces."""
        moved, computed = self.communication * communication_pace, self.compute * compute_pace
        result: Floats = np.maximum(moved - computed, 0.0) + self.share * np.minimum(moved, computed)
        return result

    @property
    def hidden(self) -> Floats:
        """Seconds of compute that only hide communication: if it were slower, the step would not be."""
        return np.where(self.communication > self.compute, (1 - self.share) * self.compute, 0.0)


@dataclass(frozen=True)
class _Solved:
    """Measured runs and what they teach about the means and about the variances."""

    runs: Targets
    scales: Floats
    """Prior spread of each quantity of each run, shape (runs, quantities)."""
    spreads: Floats
    """Prior spread of the error of each run's configuration, shape (runs,)."""
    loads: Floats
    """Derivative of each run's error by its quantities, times `scales`, at the means."""
    means: Posterior
    prior_loads: Floats
    """The same with all quantities zero: so that more runs never widen an interval."""
    variances: Posterior


def learned_time(
    calibration: Calibration,
    model: Model,
    cluster: Cluster,
    job: Job,
    layout: Layout,
    seconds: Mapping[str, Numbers],
) -> LearnedTime | None:
    """Corrections of n plans with predicted `seconds` by part; None without a measured step time."""
    solved = _solved(calibration)
    if solved is None:
        return None
    by, quantities = rule("time"), _quantities(cluster, World.of(model, cluster, job, layout), seconds)
    mine = targets(model, cluster, job, layout)
    scales, spreads = _spreads(mine)
    shared, close, expected = mine.correlations(solved.runs, by)
    mix = _mix()
    logs = scales * ((expected * solved.means.weights) @ (solved.loads @ mix))
    remaining = (expected * spreads[:, np.newaxis] * solved.spreads) @ solved.means.weights
    overlap = Overlap.of(layout, seconds, quantities[_REDUCTION])
    predicted = _sums(seconds, quantities, overlap)
    loads = scales * predicted / predicted.sum(axis=1, keepdims=True)
    cross = shared * (loads @ mix @ solved.prior_loads.T) + close * spreads[:, np.newaxis] * solved.spreads
    before = np.einsum("ij,jk,ik->i", loads, mix, loads) + spreads**2
    after = np.maximum(before - solved.variances.reduction(cross), 0.0)
    n = max(len(remaining), len(predicted))
    return LearnedTime(
        pace=np.broadcast_to(np.exp(np.clip(logs, -_LARGEST, _LARGEST)), (n, len(TIME_QUANTITIES))),
        remaining=np.broadcast_to(np.exp(np.clip(remaining, -_LARGEST, _LARGEST)), n),
        width=np.sqrt((after + _REPEAT**2) / (before + _REPEAT**2)),
        quantity_of_part=quantities,
        overlap=overlap,
    )


@dataclass(frozen=True, kw_only=True)
class Pace:
    """One quantity: factor of its predicted seconds, with 95 % intervals before and after."""

    name: str
    factor: float
    before: tuple[float, float]
    after: tuple[float, float]


def paces(
    calibration: Calibration,
    model: Model,
    cluster: Cluster,
    job: Job,
    layout: Layout,
    seconds: Mapping[str, Numbers],
) -> tuple[Pace, ...]:
    """Learned quantities of one plan, of those on which it spends time."""
    solved = _solved(calibration)
    if solved is None:
        return ()
    mine = targets(model, cluster, job, layout)
    scales = _spreads(mine)[0][0]
    correlations = mine.correlations(solved.runs, rule("time"))
    shared, expected = correlations.shared[0], correlations.expected[0]
    mix, used = _mix(), seconds_by_quantity(model, cluster, job, layout, seconds)[0]
    logs = scales * ((expected * solved.means.weights) @ (solved.loads @ mix))
    cross = shared * (scales[:, np.newaxis] * (mix @ solved.prior_loads.T))
    after = np.sqrt(np.maximum(scales**2 - solved.variances.reduction(cross), 0.0))
    return tuple(
        Pace(
            name=name,
            factor=math.exp(logs[row]),
            before=_interval(0.0, scales[row]),
            after=_interval(logs[row], after[row]),
        )
        for row, name in enumerate(TIME_QUANTITIES)
        if used[row] > 0
    )


def _interval(log: float, spread: float) -> tuple[float, float]:
    return math.exp(log - _TWO_SIDED * spread), math.exp(log + _TWO_SIDED * spread)


def seconds_by_quantity(
    model: Model, cluster: Cluster, job: Job, layout: Layout, seconds: Mapping[str, Numbers]
) -> Floats:
    """Seconds of n plans by `TIME_QUANTITIES`, shape (n, quantities): derivatives of the step time by their paces."""
    quantities = _quantities(cluster, World.of(model, cluster, job, layout), seconds)
    return _sums(seconds, quantities, Overlap.of(layout, seconds, quantities[_REDUCTION]))


def _quantities(cluster: Cluster, world: World, seconds: Mapping[str, Numbers]) -> dict[str, NDArray[np.intp]]:
    """Quantity of each part of each plan. Communication has that of its slowest link."""
    tensor = world.data_parallel_degree // world.reduction_degree
    tensor_inside = np.atleast_1d(bus_bytes_per_second(cluster, tensor, world.tensor_stride)[1])
    data_inside = np.atleast_1d(bus_bytes_per_second(cluster, world.reduction_degree, world.data_stride)[1])
    special = {
        "tensor_parallel_seconds": np.where(tensor_inside, _IN_NODE, _ACROSS),
        _REDUCTION: np.where(data_inside, _IN_NODE, _ACROSS),
    }
    return {name: special[name] if name in special else np.array([_OF_PART.get(name, _COMPUTE)]) for name in seconds}


def _sums(seconds: Mapping[str, Numbers], quantities: Mapping[str, NDArray[np.intp]], overlap: Overlap) -> Floats:
    columns = np.broadcast_arrays(*(np.atleast_1d(values) for values in seconds.values()))
    sums = np.zeros((len(columns[0]), len(TIME_QUANTITIES)))
    rows = np.arange(len(sums))
    for name, values in zip(seconds, columns, strict=True):
        sums[rows, quantities[name]] += values
    sums[:, _COMPUTE] = np.maximum(sums[:, _COMPUTE] - overlap.hidden, 0.0)
    sums[rows, quantities[_REDUCTION]] += overlap.hidden
    return sums


def _mix() -> Floats:
    """Correlations between the quantities of one run."""
    common = rule("time").common
    size = len(TIME_QUANTITIES)
    return common * np.ones((size, size)) + (1 - common) * np.eye(size)


def _spreads(of: Targets) -> tuple[Floats, Floats]:
    """Prior spreads of the quantities, shape (n, quantities), and of the configuration's own error, shape (n,)."""
    entry = table()["time"]["spread"]
    relative = np.array([entry[name] for name in TIME_QUANTITIES])
    stacks, kinds = np.broadcast_arrays(of.texts["stack"], of.texts["kind"])
    sources, runs = np.zeros(len(kinds)), np.zeros(len(kinds))
    for stack in np.unique(stacks):
        for kind in np.unique(kinds):
            rows = (stacks == stack) & (kinds == kind)
            sources[rows], runs[rows] = source_spread(str(stack), str(kind)), run_spread(str(stack), str(kind))
    return sources[:, np.newaxis] * relative, entry["configuration"] * runs


@lru_cache(maxsize=32)
def _solved(calibration: Calibration) -> _Solved | None:
    """Mode of the learned quantities, by Gauss-Newton steps on the logarithm of the sum of the parts."""
    measured = [run for run in calibration.runs if run.step_seconds is not None]
    if not measured:
        return None
    runs = Targets.of_runs([run.conditions for run in measured])
    scales, spreads = _spreads(runs)
    predicted = np.array([run.predicted_seconds for run in measured])
    errors = np.log(np.array([run.step_seconds for run in measured], dtype=np.float64) / predicted.sum(axis=1))
    variance = np.array([run.step_noise for run in measured]) ** 2
    shared, close, expected = runs.correlations(runs, rule("time"))
    products = np.outer(spreads, spreads)
    mix, exact = _mix(), np.zeros(len(measured), dtype=bool)

    def solve(loads: Floats, of: Floats, quantities: Floats, remaining: Floats) -> Posterior:
        return update(quantities * (loads @ mix @ loads.T) + remaining * products, of, variance, exact)

    shares = predicted / predicted.sum(axis=1, keepdims=True)
    prior_loads = loads = scales * shares
    variances = solve(loads, errors, shared, close)
    means = solve(loads, errors, expected, expected)
    for _ in range(_ROUNDS):
        logs = np.clip(scales * ((expected * means.weights) @ (loads @ mix)), -_LARGEST, _LARGEST)
        scaled = shares * np.exp(logs)
        total = scaled.sum(axis=1)
        slopes = scaled / total[:, np.newaxis]
        loads = scales * slopes
        means = solve(loads, errors - np.log(total) + (slopes * logs).sum(axis=1), expected, expected)
    return _Solved(runs, scales, spreads, loads, means, prior_loads, variances)
