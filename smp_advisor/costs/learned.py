"""Correction of predicted step times and memory by the user's measured runs: a Gaussian update.

A run's error of time is the logarithm of its measured over its predicted step time. It has four learned quantities
(`TIME_QUANTITIES`: pace of compute, of communication inside a node and across nodes, and of the host) and an error of
its configuration. The error of memory has four parts (`MEMORY_QUANTITIES`) with the spreads of the cost model; an
out-of-memory error is a lower limit of the required memory. All are normal with mean zero before the first run. Runs of
similar conditions have correlated errors (`transfer`), so a measured run corrects similar plans most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from smp_advisor.costs.communication import bus_bytes_per_second
from smp_advisor.costs.constants import constant
from smp_advisor.costs.memory import memory_error_parts, needed_bytes
from smp_advisor.costs.transfer import Targets, rule, table, targets
from smp_advisor.costs.uncertainty import run_spread, source_spread
from smp_advisor.costs.world import World
from smp_advisor.workload.calibration import MEMORY_QUANTITIES, TIME_QUANTITIES

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


_NEWTON_STEPS = 30
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Posterior:
    """Effect of n measurements on other quantities.

    A quantity with covariances `c` with the measured ones has the mean ``c @ weights``, and its variance decreases by
    ``c @ information @ c``.
    """

    weights: Floats
    """Shape (n,)."""
    information: Floats
    """Shape (n, n), positive semidefinite."""

    def mean(self, cross: Floats) -> Floats:
        """Means of m quantities from their covariances with the measurements, shape (m, n)."""
        result: Floats = cross @ self.weights
        return result

    def reduction(self, cross: Floats) -> Floats:
        """Decreases of the variances of m quantities, shape (m,)."""
        result: Floats = np.einsum("ij,jk,ik->i", cross, self.information, cross)
        return result


def update(prior: Floats, measured: Floats, variance: Floats, censored: NDArray[np.bool_]) -> Posterior:
    """Posterior of n errors with mean zero and covariance `prior`, shape (n, n).

    Laplace approximation about the mode, by Newton's method (Rasmussen and Williams 2006, Gaussian Processes for
    Machine Learning, algorithm 3.1). It is exact without censored measurements.
    """
    n = len(measured)
    errors = np.zeros(n)
    weights, information = np.zeros(n), np.zeros((n, n))
    for _ in range(_NEWTON_STEPS):
        slope, curvature = _likelihood(errors, measured, variance, censored)
        root = np.sqrt(curvature)
        inverse = np.linalg.inv(np.eye(n) + root[:, np.newaxis] * prior * root)
        information = root[:, np.newaxis] * inverse * root
        pull = curvature * errors + slope
        weights = pull - information @ (prior @ pull)
        before, errors = errors, prior @ weights
        if np.abs(errors - before).max(initial=0.0) < _TOLERANCE:
            break
    return Posterior(weights, information)


def _likelihood(
    errors: Floats, measured: Floats, variance: Floats, censored: NDArray[np.bool_]
) -> tuple[Floats, Floats]:
    """Slope and negative curvature of the logarithm of the likelihood at the errors, shape (n,) each."""
    slope, curvature = (measured - errors) / variance, 1 / variance
    for row in np.flatnonzero(censored & np.isfinite(variance)):
        spread = math.sqrt(variance[row])
        z = (errors[row] - measured[row]) / spread
        ratio = _hazard(z)
        slope[row], curvature[row] = ratio / spread, ratio * (z + ratio) / variance[row]
    return slope, curvature


def _hazard(z: float) -> float:
    """Normal density divided by the cumulative distribution, at z."""
    if z < -30:  # the limit, where both underflow
        return -z - 1 / z
    return math.sqrt(2 / math.pi) * math.exp(-z * z / 2) / math.erfc(-z / math.sqrt(2))


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
    solved = _solved_time(calibration)
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
    solved = _solved_time(calibration)
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
def _solved_time(calibration: Calibration) -> _Solved | None:
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


_GIB = 2**30
_CATEGORIES = {
    "state": ("parameters", "gradients", "optimizer_state", "fp32_copies"),
    "activations": ("activations", "recomputation", "logits", "optimizer_step", "communication"),
    "allocator": ("allocator_reserve",),
    "context": ("context",),
}


@dataclass(frozen=True)
class LearnedMemory:
    """Effect of measured runs on the memory of n plans."""

    shared: Floats
    """Correlation of the parts of the error with those of the runs, shape (n, runs)."""
    runs: Floats
    """Spread of each part of each run's error in GiB, shape (runs, quantities)."""
    posterior: Posterior

    def shifts(self, errors: Floats) -> Floats:
        """Learned errors in bytes, shape (n, quantities).

        Parameters
        ----------
        errors
            One standard deviation of each part of the prediction's error in bytes, shape (n, quantities).
        """
        learned: Floats = errors * ((self.shared * self.posterior.weights) @ self.runs)
        return learned

    def spread(self, errors: Floats) -> Floats:
        """One standard deviation of the remaining error in bytes, shape (n,)."""
        cross = self.shared * (errors / _GIB @ self.runs.T)
        before = ((errors / _GIB) ** 2).sum(axis=1)
        after = np.maximum(before - self.posterior.reduction(cross), 0.0)
        spread: Floats = np.sqrt(np.minimum(after + repeat_gib(0.0) ** 2, before)) * _GIB
        return spread


def repeat_gib(gib: float) -> float:
    """Spread of the peak of two runs of the same job, GiB: a tenth, and a fiftieth of the peak."""
    return math.hypot(0.1, 0.02 * gib)


def learned_memory(calibration: Calibration, of: Targets) -> LearnedMemory | None:
    """Effect of the runs on the memory of n plans; None without measured memory."""
    solved = _solved_memory(calibration)
    if solved is None:
        return None
    runs, errors, posterior = solved
    return LearnedMemory(_correlations(of, runs), errors, posterior)


def corrected(by_category: Mapping[str, Numbers], shifts: Floats) -> dict[str, Floats]:
    """Memory by category with learned errors, each divided over its categories by their size, shape (n,)."""
    result: dict[str, Floats] = {}
    for column, names in enumerate(_CATEGORIES.values()):
        size = np.maximum(sum((by_category[name] for name in names), np.zeros(len(shifts))), 1.0)
        factor = np.maximum(1 + shifts[:, column] / size, 0.0)
        for name in names:
            result[name] = np.asarray(by_category[name], dtype=np.float64) * factor
    return result


def _correlations(of: Targets, runs: Targets) -> Floats:
    by = rule("memory")
    with_runs = of.correlations(runs, by)
    return by.common * with_runs.shared + (1 - by.common) * with_runs.close


@lru_cache(maxsize=32)
def _solved_memory(calibration: Calibration) -> tuple[Targets, Floats, Posterior] | None:
    measured = [run for run in calibration.runs if run.memory_gib is not None]
    if not measured:
        return None
    runs = Targets.of_runs([run.conditions for run in measured])
    errors = np.array([run.memory_errors_gib for run in measured])
    differences = np.array([(run.memory_gib or 0.0) - run.predicted_gib for run in measured])
    variance = np.array([run.memory_noise_gib for run in measured]) ** 2
    censored = np.array([run.memory_kind == "out of memory" for run in measured])
    prior = _correlations(runs, runs) * (errors @ errors.T)
    return runs, errors, update(prior, differences, variance, censored)


def learned_seconds(
    calibration: Calibration, model: Model, cluster: Cluster, job: Job, layout: Layout, seconds: dict[str, Numbers]
) -> tuple[dict[str, Numbers], Numbers]:
    """Seconds by part, and the width of their interval relative to its width without runs.

    They are numbers for the layout of one plan (whose columns are numbers), else of shape (n,).
    """
    learned = learned_time(calibration, model, cluster, job, layout, seconds)
    if learned is None:
        return seconds, 1.0
    corrected_seconds = learned.applied(seconds)
    if len(learned.width) > 1:
        return dict(corrected_seconds), learned.width
    return {name: values.item() for name, values in corrected_seconds.items()}, learned.width.item()


@dataclass(frozen=True)
class StageLearning:
    """Correction of the memory of the stages of n plans."""

    learned: LearnedMemory

    def of_stage(
        self, by_category: dict[str, Numbers], shards: Numbers, activation_band: float, host: Numbers
    ) -> tuple[dict[str, Numbers], Numbers, Numbers, Numbers]:
        """Corrected (bytes by category, host bytes, needed bytes, one standard deviation of their error)."""
        parts = memory_error_parts(by_category, shards, activation_band)
        columns = np.broadcast_arrays(*(np.atleast_1d(parts[name]) for name in MEMORY_QUANTITIES))
        errors = np.stack(columns, axis=1)
        shifts, spread = self.learned.shifts(errors), self.learned.spread(errors)
        needed = np.maximum(needed_bytes(by_category) + shifts.sum(axis=1), 0.0)
        by = corrected(by_category, shifts)
        if len(needed) > 1:
            return dict(by), host, needed, spread
        return {name: float(values[0]) for name, values in by.items()}, host, needed.item(), spread.item()


def learned_memory_of(
    calibration: Calibration, model: Model, cluster: Cluster, job: Job, layout: Layout
) -> StageLearning | None:
    """Correction of memory; None without measured memory."""
    learned = learned_memory(calibration, targets(model, cluster, job, layout))
    return None if learned is None else StageLearning(learned)
