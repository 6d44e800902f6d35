"""Estimates with the user's measured runs: the doors of `learned_time` and `learned_memory` to the evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from smp_advisor.costs.learned_memory import corrected, learned_memory
from smp_advisor.costs.learned_time import learned_time
from smp_advisor.costs.memory import memory_error_parts, needed_bytes
from smp_advisor.costs.transfer import targets
from smp_advisor.workload.calibration import MEMORY_QUANTITIES

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.learned_memory import LearnedMemory
    from smp_advisor.elementwise import Floats
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.workload.calibration import Calibration
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model


__all__ = ["StageLearning", "learned_memory_of", "learned_seconds"]


def learned_seconds(
    calibration: Calibration, model: Model, cluster: Cluster, job: Job, layout: Layout, seconds: dict[str, Floats]
) -> tuple[dict[str, Floats], Floats]:
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
        self, by_category: dict[str, Floats], shards: Floats, activation_band: float, host: Floats
    ) -> tuple[dict[str, Floats], Floats, Floats, Floats]:
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
