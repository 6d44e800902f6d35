"""Correction of predicted step times and memory by the user's measured runs: one factor, and one shift of memory.

The error of a step time is the logarithm of its measured over its predicted seconds; that of memory is their difference
in GiB, in which an out-of-memory error is a lower limit. Both are normal with mean zero before the first run. Errors of
two runs are the less correlated, the more their conditions differ (``data/transfer.toml``). A measured run thus
corrects the plans of its request entirely, and those of other models, code and clusters by a factor that is shrunk
toward 1.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from smp_advisor.core import GIB
from smp_advisor.core.elementwise import where
from smp_advisor.core.files import data_file
from smp_advisor.costs.memory import memory_error_squares, needed_bytes
from smp_advisor.costs.uncertainty import plan_kinds, spreads
from smp_advisor.costs.world import World, stack_of
from smp_advisor.workload.calibration import FEATURES, MEMORY_QUANTITIES, Conditions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.core.elementwise import Floats as Numbers
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.workload.calibration import Calibration, MeasuredRun
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

    Floats = NDArray[np.float64]

_TEXTS = ("gpu", "instance", "stack", "family", "kind", "training")
_NAMES = {"gpu": "GPU", "stack": "kind of code", "family": "model family", "kind": "kind of plan"}
_MEMORY = re.compile(r"(?<!\s)\s*+(?<!\d)\d++\s*+GB$")
"""End of a GPU's name: variants with more memory compute alike."""
_SETTINGS = ("optimizer_step", "paged_optimizer", "state_precision", "loss", "unsharded_accumulation")
_NODES = 1
"""Place of the nodes in the figures: the same work per GPU on more of them has nearly the same error."""
_WORK = (0, 2 + FEATURES.index("sequence_length"))
"""Places of figures that are equal for all plans of a request: parameters and the sequence length."""
_OPEN = 10.0
"""Spread of the logarithm of a source's mean before its first run: wide enough that the run determines it."""
_SAME = 1e-3
"""Differences below which conditions are equal, but for the rounding of their figures."""


def rule(of: str) -> dict[str, float]:
    """Return how fast correlations fall with the differences of two runs, which ``data/transfer.toml`` explains."""
    result: dict[str, float] = data_file("costs", "transfer")[of]
    return result


@dataclass(frozen=True, kw_only=True)
class Targets:
    """Conditions of n runs or plans."""

    texts: dict[str, NDArray[np.str_]]
    """GPU, instance, kind of code and the like, shape (n,), or (1,) if all are equal."""
    figures: Floats
    """Logarithms, base 2, of the parameters, the nodes and the `FEATURES`, shape (n, 12)."""

    @classmethod
    def of_runs(cls, runs: Sequence[MeasuredRun]) -> Targets:
        conditions = [run.conditions for run in runs]
        figures = np.log2([(c.parameters, c.nodes, *c.configuration) for c in conditions])
        return cls(texts={name: np.array([getattr(c, name) for c in conditions]) for name in _TEXTS}, figures=figures)

    @property
    def first(self) -> Conditions:
        parameters, nodes, *configuration = (float(f"{2**value:.9g}") for value in self.figures[0])
        return Conditions(
            **{name: str(values[0]) for name, values in self.texts.items()},
            parameters=round(parameters),
            nodes=round(nodes),
            configuration=tuple(configuration),
        )

    def differences(self, runs: Targets) -> tuple[Floats, Floats]:
        """Numbers of differences from measured runs, with every factor of two as one, and of nodes, (n, runs) each."""
        apart = np.abs(self.figures[:, np.newaxis, :] - runs.figures)
        nodes: Floats = apart[:, :, _NODES]
        result: Floats = apart.sum(axis=2) - nodes
        for name in _TEXTS:
            result = result + (self.texts[name][:, np.newaxis] != runs.texts[name])
        return result, nodes

    def different_code(self, runs: Targets) -> NDArray[np.int64]:
        """Numbers of differences from measured runs in GPU, instance, code, family and training, shape (n, runs)."""
        names = [name for name in _TEXTS if name != "kind"]
        differ = [self.texts[name][:, np.newaxis] != runs.texts[name] for name in names]
        result: NDArray[np.int64] = np.sum(differ, axis=0)
        return result

    def differing(self, run: Targets) -> tuple[str, ...]:
        """Return the names of the conditions of the first plan that a measured run did not have."""
        texts = (_NAMES.get(name, name) for name in _TEXTS if self.texts[name][0] != run.texts[name][0])
        apart = np.abs(self.figures[0] - run.figures[0]) > _SAME
        figures = ("parameters", "nodes", *FEATURES)
        return (*texts, *(name.replace("_", " ") for name, differs in zip(figures, apart, strict=True) if differs))


def targets(model: Model, cluster: Cluster, job: Job, layout: Layout) -> Targets:
    """Return the conditions of the n plans of a layout."""
    world, defaults = World.of(model, cluster, job, layout), job.defaulted()
    usual = (layout.checkpoint_layers == 1) & (layout.checkpoint_period == 1) & (layout.keeps_products == 0)
    figures = {
        "tensor_parallel_degree": layout.tensor_parallel_degree,
        "pipeline_parallel_degree": layout.pipeline_parallel_degree,
        "context_parallel_degree": layout.context_parallel_degree,
        "sharding_level": (1 + layout.shard_level) * where((layout.shard_level == 3) & layout.keeps_gathered, 2, 1),
        "sharding_groups": where(layout.shard_level > 0, world.reduction_degree / world.shards, 1),
        "microbatch_samples": world.microbatch_samples,
        # Without a pipeline, accumulated microbatches repeat the same work.
        "microbatches": where(layout.pipeline_parallel_degree > 1, layout.microbatches, 1),
        "sequence_length": world.sequence_length,
        "checkpointed": where(usual, 2, where(layout.checkpoint_layers != 0, 4, 1)),
        "offloaded": (1 + layout.offload_activations) * (1 + layout.offload_state),
    }
    columns = [model.parameter_count, cluster.nodes, *(figures[name] for name in FEATURES)]
    training = [job.precision, *(["fp8"] if job.fp8 else []), job.optimizer, f"{job.attention} attention"]
    training += [f"{name}={getattr(job, name)}" for name in _SETTINGS if name not in defaults]
    if job.adapter is not None:
        training.append(f"adapter of rank {job.adapter.rank} over {job.adapter.base_bits} bits")
    same = {
        "gpu": _MEMORY.sub("", cluster.instance.gpu),
        "instance": cluster.instance.name,
        "stack": stack_of(job, layout).name,
        "family": model.family,
        "training": ", ".join(training),
    }
    texts = {name: np.array([text]) for name, text in same.items()}
    return Targets(
        texts=texts | {"kind": np.atleast_1d(plan_kinds(layout, cluster))},
        figures=np.log2(np.stack(np.broadcast_arrays(*map(np.atleast_1d, columns)), axis=1)),
    )


_DENSITY = math.sqrt(2 / math.pi)
_FAR = 30.0
"""Standard deviations beyond which density and cumulative distribution of a normal error underflow."""
_LARGEST = 3.0
"""Largest learned logarithm of a step time: a factor of 20."""


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


REPEAT = 0.02
"""Spread of the step time of two runs of the same job."""


def _spreads(of: Targets) -> Floats:
    """Standard deviations of the errors of source and configuration of n plans, shape (n, 2)."""
    stacks, kinds = np.broadcast_arrays(of.texts["stack"], of.texts["kind"])
    pairs = list(zip(stacks.tolist(), kinds.tolist(), strict=True))
    by_pair = {pair: spreads(*pair) for pair in set(pairs)}
    return np.array([by_pair[pair] for pair in pairs]).reshape(-1, 2) * [1.0, rule("time")["configuration"]]


def _covariances(of: Targets, runs: Targets) -> tuple[Floats, Floats]:
    """Covariances with the errors of time of measured runs, shape (n, runs): for the intervals, and for the means.

    The error of the source is alike for all its plans, that of a configuration its own. Nothing is known about a
    source's mean before its first run, which thus moves all plans of a request alike: none is preferred because nobody
    has measured it. A second run of another plan shows the errors of the two configurations.
    """
    of_time, (apart, nodes) = rule("time"), of.differences(runs)
    common = of_time["per_doubling_of_nodes"] ** nodes
    common *= np.where(of.texts["gpu"][:, np.newaxis] != runs.texts["gpu"], of_time["gpu"], 1.0)
    alike = common * of_time["per_difference"] ** apart
    works = np.abs(of.figures[:, np.newaxis, _WORK] - runs.figures[:, _WORK]).sum(axis=2) + of.different_code(runs)
    own = alike * (apart < _SAME)
    sources, configurations = (np.outer(*both) for both in zip(_spreads(of).T, _spreads(runs).T, strict=True))
    means = _OPEN**2 * common * of_time["per_difference_of_work"] ** works + alike * configurations
    return alike * sources + own * configurations, means


@lru_cache(maxsize=32)
def _solved_time(calibration: Calibration) -> tuple[Targets, Posterior, Posterior] | None:
    """Measured runs, and what they teach about intervals and about means."""
    measured = [run for run in calibration.runs if run.step_seconds is not None]
    if not measured:
        return None
    logs = np.log([(run.step_seconds or 0.0) / run.predicted_seconds for run in measured])
    noise, exact = np.array([run.step_noise for run in measured]) ** 2, np.zeros(len(measured), dtype=bool)
    runs = Targets.of_runs(measured)
    intervals, means = (update(prior, logs, noise, exact) for prior in _covariances(runs, runs))
    return runs, intervals, means


def learned_time(
    calibration: Calibration, model: Model, cluster: Cluster, job: Job, layout: Layout
) -> tuple[Numbers, Numbers]:
    """Factor of the predicted seconds of n plans, and the relative width of their interval."""
    solved = _solved_time(calibration)
    if solved is None:
        return 1.0, 1.0
    runs, intervals, means = solved
    mine = targets(model, cluster, job, layout)
    cross, expected = _covariances(mine, runs)
    before = (_spreads(mine) ** 2).sum(axis=1)
    after = np.maximum(before - intervals.reduction(cross), 0.0)
    width = np.sqrt((after + REPEAT**2) / (before + REPEAT**2))
    factor: Floats = np.exp(np.clip(expected @ means.weights, -_LARGEST, _LARGEST))
    return (factor, width) if len(factor) != 1 else (factor.item(), width.item())


def is_measured(calibration: Calibration, model: Model, cluster: Cluster, job: Job, layout: Layout) -> Floats:
    """Return whether the step time of n plans was measured, 1 or 0, shape (n,), or (1,) without such runs."""
    solved = _solved_time(calibration)
    if solved is None:
        return np.zeros(1)
    apart, nodes = targets(model, cluster, job, layout).differences(solved[0])
    return np.where((apart + nodes).min(axis=1) < _SAME, 1.0, 0.0)


_CATEGORIES = (
    ("parameters", "gradients", "optimizer_state", "fp32_copies"),
    ("activations", "recomputation", "logits", "optimizer_step", "communication"),
    ("allocator_reserve",),
    ("context",),
)
"""Categories of each of the `MEMORY_QUANTITIES`."""


@dataclass(frozen=True)
class LearnedMemory:
    """Effect of measured runs on the memory of n plans."""

    correlations: Floats
    """Of the errors with those of the runs, shape (n, runs)."""
    errors: Floats
    """Spread of each part of each run's error in GiB, shape (runs, parts)."""
    posterior: Posterior
    limits: Floats
    """Memory that the runs ran out of, bytes, shape (n, runs): 0 if a plan has other conditions, or a run a peak."""
    predicted: Floats
    """Predicted memory of the runs, bytes, shape (runs,)."""

    @classmethod
    def of(cls, calibration: Calibration, plans: Targets) -> LearnedMemory | None:
        """Return the effect of a calibration; None without measured memory."""
        solved = _solved_memory(calibration)
        if solved is None:
            return None
        runs, errors, posterior = solved
        measured = [run for run in calibration.runs if run.memory_gib is not None]
        ran_out = [(run.memory_gib or 0.0) if run.memory_kind == "out of memory" else 0.0 for run in measured]
        return cls(
            correlations=_memory_correlations(plans, runs),
            errors=errors,
            posterior=posterior,
            limits=np.where(plans.different_code(runs) == 0, ran_out, 0.0) * GIB,
            predicted=np.array([run.predicted_gib for run in measured]) * GIB,
        )

    def of_stage(
        self, by_category: dict[str, Numbers], shards: Numbers, activation_band: float
    ) -> tuple[dict[str, Numbers], Numbers, Numbers]:
        """Corrected (bytes by category, needed bytes, one standard deviation of their error)."""
        squares = memory_error_squares(by_category, shards, activation_band)
        parts = np.broadcast_arrays(*(np.atleast_1d(squares[name]) for name in MEMORY_QUANTITIES))
        errors = np.sqrt(np.stack(parts, axis=1)) / GIB
        # A part moves by what the runs measured of it: the context not at all, if they measured tensors only.
        shifts = GIB * errors * ((self.correlations * self.posterior.weights) @ self.errors)
        cross, square = self.correlations * (errors @ self.errors.T), (errors**2).sum(axis=1)
        left = np.maximum(square - self.posterior.reduction(cross), 0.0) + repeat_gib(0.0) ** 2
        spread: Floats = np.sqrt(np.minimum(left, square)) * GIB
        # A plan of which every part is as large as that of a run that ran out of memory runs out of it, too.
        larger = (errors[:, np.newaxis] >= self.errors * (1 - _SAME)).all(axis=2)
        larger &= np.atleast_1d(needed_bytes(by_category))[:, np.newaxis] >= self.predicted * (1 - _SAME)
        beyond = np.where(larger & (self.limits > 0), self.limits + repeat_gib(0.0) * GIB, 0.0).max(axis=1)
        shifts[:, 1] += np.maximum(beyond - needed_bytes(by_category) - shifts.sum(axis=1), 0.0)
        needed = np.maximum(needed_bytes(by_category) + shifts.sum(axis=1), 0.0)
        corrected: dict[str, Floats] = {}
        for shift, names in zip(shifts.T, _CATEGORIES, strict=True):
            size = np.maximum(sum((by_category[name] for name in names), np.zeros(len(shift))), 1.0)
            factor = np.maximum(1 + shift / size, 0.0)
            corrected |= {name: np.asarray(by_category[name], dtype=np.float64) * factor for name in names}
        if len(needed) > 1:
            return dict(corrected), needed, spread
        return {name: values.item() for name, values in corrected.items()}, needed.item(), spread.item()


_EXACT_GIB = 1e-4
"""Noise that keeps the covariances of equal runs invertible."""


def repeat_gib(gib: float) -> float:
    """Spread of the peak of two runs of the same job, GiB: a tenth, and a fiftieth of the peak."""
    return math.hypot(0.1, 0.02 * gib)


def _memory_correlations(of: Targets, runs: Targets) -> Floats:
    of_memory, (differences, _) = rule("memory"), of.differences(runs)
    common = of_memory["common"]
    result: Floats = common * of_memory["per_difference"] ** differences
    return result + (1 - common) * of_memory["own_per_difference"] ** differences


@lru_cache(maxsize=32)
def _solved_memory(calibration: Calibration) -> tuple[Targets, Floats, Posterior] | None:
    """Runs with measured memory, the spreads of their errors by part in GiB, and what they teach."""
    measured = [run for run in calibration.runs if run.memory_gib is not None]
    if not measured:
        return None
    runs = Targets.of_runs(measured)
    errors = np.array([run.memory_errors_gib for run in measured])
    differences = np.array([(run.memory_gib or 0.0) - run.predicted_gib for run in measured])
    censored = np.array([run.memory_kind == "out of memory" for run in measured])
    # A run that ran out of memory needed more than its limit, without doubt.
    variance = np.where(censored, _EXACT_GIB, [run.memory_noise_gib for run in measured]) ** 2
    prior = _memory_correlations(runs, runs) * (errors @ errors.T)
    return runs, errors, update(prior, differences, variance, censored)
