"""Correction of predicted memory by the user's measured peaks and out-of-memory errors.

The prediction's error has four parts (`MEMORY_QUANTITIES`), normal with the spreads of the cost model. Runs of similar
conditions share a part of it (`transfer`). An out-of-memory error is a lower limit of the required memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from smp_advisor.costs.posterior import Posterior, update
from smp_advisor.costs.transfer import Targets, rule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from smp_advisor.elementwise import Floats as Numbers
    from smp_advisor.workload.calibration import Calibration

    Floats = NDArray[np.float64]

__all__ = ["LearnedMemory", "corrected", "learned_memory", "repeat_gib"]

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
    solved = _solved(calibration)
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
def _solved(calibration: Calibration) -> tuple[Targets, Floats, Posterior] | None:
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
