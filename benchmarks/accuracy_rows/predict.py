"""Predictions of the cost model for a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from smp_advisor.core import GIB
from smp_advisor.costs.activations import block_bytes
from smp_advisor.costs.evaluate import doubt_of, fit_probability, memory_columns, seconds_columns, trained
from smp_advisor.costs.memory import memory_error_squares, stage_bytes
from smp_advisor.costs.step_time import Step, step_of
from smp_advisor.costs.uncertainty import step_time_factors
from smp_advisor.costs.world import World, stages, vocabulary_shards

if TYPE_CHECKING:
    from smp_advisor.cluster import Cluster
    from smp_advisor.costs.uncertainty import Doubt
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.workload import Job, Model

    from .plans import Run

__all__ = ["MemoryPrediction", "fits", "memory", "step_interval", "step_seconds", "step_time_doubt"]

_CLASSES: tuple[Literal["allocated", "reserved", "total"], ...] = ("allocated", "reserved", "total")
_NOT_ALLOCATED = ("allocator_reserve", "context")


@dataclass(frozen=True)
class MemoryPrediction:
    """Peak memory per GPU of a stage, GiB."""

    allocated_gib: float
    reserved_gib: float
    total_gib: float
    error_gib: dict[str, float]
    """One standard deviation of the prediction's error, by class."""
    terms: dict[str, float]

    def of_class(self, name: str) -> float:
        """Figure of a `mem_class`."""
        return {"allocated": self.allocated_gib, "reserved": self.reserved_gib, "total": self.total_gib}[name]


def memory(run: Run) -> MemoryPrediction:
    """Memory of the run's measured stage, or of the largest stage."""
    model = trained(run.model, run.job)
    world = World.of(model, run.cluster, run.job, run.layout)
    blocks = block_bytes(model, run.layout, world, run.job)
    every = stages(model, int(run.layout.pipeline_parallel_degree[0]))
    measured = every if run.stage is None else (every[run.stage],)
    shards = vocabulary_shards(model, run.layout)
    predictions = [
        _prediction(stage_bytes(model, run.layout, world, stage, blocks), shards, model.activation_band)
        for stage in measured
    ]
    return max(predictions, key=lambda prediction: prediction.total_gib)


def _prediction(by_category: dict[str, np.ndarray], shards: np.ndarray, activation_band: float) -> MemoryPrediction:
    terms = {name: np.ravel(values)[0] / GIB for name, values in by_category.items()}
    allocated = sum(value for name, value in terms.items() if name not in _NOT_ALLOCATED)
    reserved = allocated + terms["allocator_reserve"]
    errors = {
        name: np.sqrt(sum(memory_error_squares(by_category, shards, activation_band, of=name).values()))
        for name in _CLASSES
    }
    error = {name: float(np.ravel(value)[0]) / GIB for name, value in errors.items()}
    return MemoryPrediction(allocated, reserved, reserved + terms["context"], error, terms)


def fits(run: Run) -> float:
    """Probability that the run fits."""
    return fit_probability(float(memory_columns(run.model, run.cluster, run.job, run.layout).margin[0]))


def step_seconds(run: Run) -> dict[str, float]:
    """Seconds per step by part."""
    columns = seconds_columns(run.model, run.cluster, run.job, run.layout)
    return {name: float(values[0]) for name, values in columns.items()}


def step_interval(run: Run) -> tuple[float, float]:
    """Factors of the step time between which the stated 95 % interval lies."""
    return step_time_factors(step_time_doubt(run.model, run.cluster, run.job, run.layout))


def step_time_doubt(model: Model, cluster: Cluster, job: Job, layout: Layout) -> Doubt:
    """Shares that determine the interval of one plan's step time; `layout` has a single row."""
    model, degree = trained(model, job), int(np.ravel(layout.pipeline_parallel_degree)[0])
    world = World.of(model, cluster, job, layout)
    step = step_of(model, cluster, job, layout, world, degree)
    numbers = ({name: np.ravel(part)[0] for name, part in of.items()} for of in step)
    return doubt_of(model, cluster, job, layout, world, Step(*numbers))
