"""Update of correlated normal errors by measurements, some of them one-sided."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["Posterior", "update"]

_ROUNDS = 30
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

    Parameters
    ----------
    measured, variance
        Measured errors and the variances of their noise, shape (n,). A variance of infinity has no effect.
    censored
        Whether the measured value is only a lower limit (a run that ran out of memory).
    """
    n = len(measured)
    errors = np.zeros(n)
    weights, information = np.zeros(n), np.zeros((n, n))
    for _ in range(_ROUNDS):
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
