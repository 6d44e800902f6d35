"""Correction of predicted step times and memory by the user's measured runs: a conjugate Gaussian update.

A run's error of time is the logarithm of its measured over its predicted step time. It is the sum of four learned
quantities (`TIME_QUANTITIES`: pace of compute, of communication inside a node and across nodes, and of the host), each
with its share of the step, and of an error of its configuration. The error of memory has four parts
(`MEMORY_QUANTITIES`) with the spreads of the cost model; an out-of-memory error is a lower limit of the required
memory. All are normal with mean zero before the first run. Runs of similar conditions have correlated errors
(`transfer`), so a measured run corrects similar plans most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from smp_advisor.core import GIB
from smp_advisor.costs.communication import bus_bytes_per_second
from smp_advisor.costs.memory import memory_error_squares, needed_bytes
from smp_advisor.costs.step_time import PASSES
from smp_advisor.costs.transfer import Targets, rule, targets
from smp_advisor.costs.uncertainty import TWO_SIDED, spreads
from smp_advisor.costs.world import World
from smp_advisor.workload.calibration import MEMORY_QUANTITIES, TIME_QUANTITIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.core.elementwise import Floats as Numbers
    from smp_advisor.costs.step_time import Step
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.workload.calibration import Calibration, MeasuredRun
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

    Floats = NDArray[np.float64]

_DENSITY = math.sqrt(2 / math.pi)
_FAR = 30.0
"""Standard deviations beyond which density and cumulative distribution of a normal error underflow."""
_LARGEST = 3.0
"""Largest learned logarithm of a pace: a factor of 20."""


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

    def reduction(self, cross: Floats) -> Floats:
        """Decreases of the variances of m quantities, shape (m,)."""
        result: Floats = np.einsum("ij,jk,ik->i", cross, self.information, cross)
        return result


def update(prior: Floats, measured: Floats, variance: Floats, censored: NDArray[np.bool_]) -> Posterior:
    """Posterior of n errors with mean zero and covariance `prior`, shape (n, n), one measurement after the other.

    A censored measurement is a lower limit: the error then has the mean and variance of the truncated normal
    distribution (Rasmussen and Williams 2006, Gaussian Processes for Machine Learning, equation 3.85). Lower limits
    follow the exact measurements, from the largest on, so that the order of the runs has no effect.
    """
    n = len(measured)
    weights, information = np.zeros(n), np.zeros((n, n))
    for row in np.lexsort((-measured, variance, censored)):
        direction = np.eye(n)[row] - information @ prior[row]
        spread = math.sqrt(max(prior[row] @ direction, 0.0) + variance[row])
        z = (prior[row] @ weights - measured[row]) / spread
        slope, curvature = -z, 1.0
        if censored[row]:
            # The normal density divided by the cumulative distribution, at z.
            slope = -z - 1 / z if z < -_FAR else _DENSITY * math.exp(-z * z / 2) / math.erfc(-z / math.sqrt(2))
            curvature = slope * (z + slope)
        weights = weights + slope / spread * direction
        information = information + curvature / spread**2 * np.outer(direction, direction)
    return Posterior(weights, information)


_COMPUTE, _IN_NODE, _ACROSS, _HOST = range(len(TIME_QUANTITIES))
_OF_PART = {"optimizer_seconds": _HOST, "offload_seconds": _HOST}
_REPEAT = 0.02
"""Spread of two runs of the same job."""


@dataclass(frozen=True)
class _Errors:
    """Errors of the time of n runs or plans."""

    of: Targets
    scales: Floats
    """Prior spread of each quantity, shape (n, quantities)."""
    loads: Floats
    """The same, times the quantity's share of the step."""
    spreads: Floats
    """Prior spread of the error of the configuration, shape (n,)."""

    @classmethod
    def of_seconds(cls, of: Targets, seconds: Floats) -> _Errors:
        """Errors of steps with these seconds by quantity, shape (n, quantities)."""
        entry = rule("time").spread
        stacks, kinds = np.broadcast_arrays(of.texts["stack"], of.texts["kind"])
        pairs = [(str(stack), str(kind)) for stack, kind in zip(stacks, kinds, strict=True)]
        by_pair = {pair: spreads(*pair) for pair in set(pairs)}
        both = np.array([by_pair[pair] for pair in pairs])
        scales = both[:, :1] * np.array([entry[name] for name in TIME_QUANTITIES])
        shares = seconds / seconds.sum(axis=1, keepdims=True)
        return cls(of, scales, scales * shares, entry["configuration"] * both[:, 1])

    @classmethod
    def of_runs(cls, runs: Sequence[MeasuredRun]) -> _Errors:
        of = Targets.of_runs([run.conditions for run in runs])
        return cls.of_seconds(of, np.array([run.predicted_seconds for run in runs]))

    def covariances(self, runs: _Errors) -> tuple[Floats, Floats]:
        """Covariances with the errors of measured runs, shape (n, runs): for the variances, and for the means."""
        shared, close = self.of.correlations(runs.of, rule("time"))
        quantities, own = self.loads @ _mix() @ runs.loads.T, np.outer(self.spreads, runs.spreads)
        return shared * quantities + close * own, shared * (quantities + own)


@cache
def _mix() -> Floats:
    """Correlations between the quantities of one run."""
    common, size = rule("time").common, len(TIME_QUANTITIES)
    result: Floats = common * np.ones((size, size)) + (1 - common) * np.eye(size)
    return result


@lru_cache(maxsize=32)
def _solved_time(calibration: Calibration) -> tuple[_Errors, Posterior, Posterior] | None:
    """Measured runs, and what they teach about the variances and about the means."""
    measured = [run for run in calibration.runs if run.step_seconds is not None]
    if not measured:
        return None
    sums = np.array([sum(run.predicted_seconds) for run in measured])
    logs = np.log(np.array([run.step_seconds for run in measured], dtype=np.float64) / sums)
    noise, exact = np.array([run.step_noise for run in measured]) ** 2, np.zeros(len(measured), dtype=bool)
    runs = _Errors.of_runs(measured)
    variances, means = (update(prior, logs, noise, exact) for prior in runs.covariances(runs))
    return runs, variances, means


def _log_paces(mine: _Errors, runs: _Errors, means: Posterior) -> Floats:
    """Learned logarithms of the paces, shape (n, quantities)."""
    shared = mine.of.correlations(runs.of, rule("time")).shared
    logs: Floats = mine.scales * ((shared * means.weights) @ (runs.loads @ _mix()))
    return np.clip(logs, -_LARGEST, _LARGEST)


def learned_seconds(
    calibration: Calibration, model: Model, cluster: Cluster, job: Job, layout: Layout, step: Step
) -> tuple[dict[str, Numbers], Numbers]:
    """Seconds by part with their learned paces and sum, and the relative width of their interval."""
    solved = _solved_time(calibration)
    if solved is None:
        return step.seconds, 1.0
    runs, variances, means = solved
    parts = _by_part_and_quantity(cluster, World.of(model, cluster, job, layout), step)
    by_quantity = np.sum([*parts.values()], axis=0)
    mine = _Errors.of_seconds(targets(model, cluster, job, layout), by_quantity)
    cross, expected = mine.covariances(runs)
    before = np.einsum("ij,jk,ik->i", mine.loads, _mix(), mine.loads) + mine.spreads**2
    after = np.maximum(before - variances.reduction(cross), 0.0)
    width = np.sqrt((after + _REPEAT**2) / (before + _REPEAT**2))
    paces = np.exp(_log_paces(mine, runs, means))
    total = by_quantity.sum(axis=1) * np.exp(np.clip(expected @ means.weights, -_LARGEST, _LARGEST))
    paces = paces * (total / (by_quantity * paces).sum(axis=1))[:, np.newaxis]
    corrected = {name: (seconds * paces).sum(axis=1) for name, seconds in parts.items()}
    if len(paces) > 1:
        return dict(corrected), width
    return {name: values.item() for name, values in corrected.items()}, width.item()


def unmeasured_share(calibration: Calibration, model: Model, cluster: Cluster, job: Job, layout: Layout) -> Floats:
    """Share of what decides the time of n plans that no run has measured, shape (n,), or (1,) without runs.

    It is 0 for a plan that ran itself.
    """
    solved = _solved_time(calibration)
    if solved is None:
        return np.ones(1)
    close = targets(model, cluster, job, layout).correlations(solved[0].of, rule("time")).close
    share: Floats = 1 - close.max(axis=1)
    return share


@dataclass(frozen=True, kw_only=True)
class Pace:
    """One quantity: factor of its predicted seconds, with 95 % intervals before and after."""

    name: str
    factor: float
    before: tuple[float, float]
    after: tuple[float, float]


def paces(
    calibration: Calibration, model: Model, cluster: Cluster, job: Job, layout: Layout, step: Step
) -> tuple[Pace, ...]:
    """Learned quantities of one plan, of those on which it spends time."""
    solved = _solved_time(calibration)
    if solved is None:
        return ()
    runs, variances, means = solved
    used = seconds_by_quantity(model, cluster, job, layout, step)
    mine = _Errors.of_seconds(targets(model, cluster, job, layout), used)
    scales, logs = mine.scales[0], _log_paces(mine, runs, means)[0]
    shared = mine.of.correlations(runs.of, rule("time")).shared[0]
    cross = shared * (scales[:, np.newaxis] * (_mix() @ runs.loads.T))
    after = np.sqrt(np.maximum(scales**2 - variances.reduction(cross), 0.0))
    return tuple(
        Pace(
            name=name,
            factor=math.exp(logs[row]),
            before=_interval(0.0, scales[row]),
            after=_interval(logs[row], after[row]),
        )
        for row, name in enumerate(TIME_QUANTITIES)
        if used[0, row] > 0
    )


def _interval(log: float, spread: float) -> tuple[float, float]:
    return math.exp(log - TWO_SIDED * spread), math.exp(log + TWO_SIDED * spread)


def seconds_by_quantity(model: Model, cluster: Cluster, job: Job, layout: Layout, step: Step) -> Floats:
    parts = _by_part_and_quantity(cluster, World.of(model, cluster, job, layout), step)
    result: Floats = np.sum([*parts.values()], axis=0)
    return result


def _by_part_and_quantity(cluster: Cluster, world: World, step: Step) -> dict[str, Floats]:
    """Seconds of each part by `TIME_QUANTITIES`, shape (n, quantities): of the slowest link, and waits of the host."""
    tensor = world.data_parallel_degree // world.reduction_degree
    groups = {
        "tensor_parallel_seconds": (tensor, world.tensor_stride),
        "data_parallel_seconds": (world.reduction_degree, world.data_stride),
    }
    inside = {name: np.atleast_1d(bus_bytes_per_second(cluster, *group)[1]) for name, group in groups.items()}
    passes = sum((step.seconds[name] for name in PASSES), 0.0)
    rows = np.arange(np.size(sum(step.seconds.values(), 0.0)))
    by_part = {}
    for name, seconds in step.seconds.items():
        waiting = step.of_host["passes"] * seconds / passes if name in PASSES else step.of_host.get(name, 0.0)
        waiting = np.minimum(waiting, seconds)
        own = np.where(inside[name], _IN_NODE, _ACROSS) if name in inside else _OF_PART.get(name, _COMPUTE)
        by = np.zeros((len(rows), len(TIME_QUANTITIES)))
        by[:, _HOST] = waiting
        by[rows, own] += seconds - waiting
        by_part[name] = by
    return by_part


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

    @classmethod
    def of(cls, calibration: Calibration, plans: Targets) -> LearnedMemory | None:
        """The effect of a calibration; None without measured memory."""
        solved = _solved_memory(calibration)
        return None if solved is None else cls(_correlations(plans, solved[0]), *solved[1:])

    def of_stage(
        self, by_category: dict[str, Numbers], shards: Numbers, activation_band: float, host: Numbers
    ) -> tuple[dict[str, Numbers], Numbers, Numbers, Numbers]:
        """Corrected (bytes by category, host bytes, needed bytes, one standard deviation of their error)."""
        squares = memory_error_squares(by_category, shards, activation_band)
        columns = np.broadcast_arrays(*(np.atleast_1d(squares[name]) for name in MEMORY_QUANTITIES))
        errors = np.sqrt(np.stack(columns, axis=1))
        # Shifts by the runs, in parts of one standard deviation of each part's error, and the remaining error.
        shifts = errors * ((self.shared * self.posterior.weights) @ self.runs)
        cross, before = self.shared * (errors / GIB @ self.runs.T), ((errors / GIB) ** 2).sum(axis=1)
        after = np.maximum(before - self.posterior.reduction(cross), 0.0)
        spread: Floats = np.sqrt(np.minimum(after + repeat_gib(0.0) ** 2, before)) * GIB
        needed = np.maximum(needed_bytes(by_category) + shifts.sum(axis=1), 0.0)
        by: dict[str, Floats] = {}
        for column, names in enumerate(_CATEGORIES.values()):
            size = np.maximum(sum((by_category[name] for name in names), np.zeros(len(shifts))), 1.0)
            factor = np.maximum(1 + shifts[:, column] / size, 0.0)
            by |= {name: np.asarray(by_category[name], dtype=np.float64) * factor for name in names}
        if len(needed) > 1:
            return dict(by), host, needed, spread
        return {name: values.item() for name, values in by.items()}, host, needed.item(), spread.item()


def repeat_gib(gib: float) -> float:
    """Spread of the peak of two runs of the same job, GiB: a tenth, and a fiftieth of the peak."""
    return math.hypot(0.1, 0.02 * gib)


def _correlations(of: Targets, runs: Targets) -> Floats:
    by = rule("memory")
    with_runs = of.correlations(runs, by)
    result: Floats = by.common * with_runs.shared + (1 - by.common) * with_runs.close
    return result


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
