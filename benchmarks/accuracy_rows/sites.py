"""Fit of the constants with an effect of every site.

The error of run i at site s is r_i = e_i + J_i m = b_s + n_i with constants moved by m, a site effect b_s of standard
deviation `between`, and noise n_i with the site's own scatter. Both have heavy tails (Student's t), by weights that are
iterated. Marginalized over b_s, the rows of a site fix differences between its plans, and the level of all constants
with few votes however many rows there are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from smp_advisor.costs.constants import constants

from .spreads import Runs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from .timed import Timed

    Floats = NDArray[np.float64]

__all__ = ["Linear", "SiteFit", "fit"]

_FREEDOM = 4.0
"""Degrees of freedom of the errors' tails."""
_LEAST_NOISE = 0.015
"""Published figures are rounded, and runs vary."""
_PRIOR_ROWS = 3.0
"""Rows by which the pooled scatter of all sites counts in that of one."""
_ALIKE = 0.5
"""Rows of a site are variations of few plans: n of them count as n to the power of one minus this."""
_UNMODELED = 1.75
"""Factor of a row's noise in the fit: deviations of similar plans have the same cause and are not independent."""
_VOTES = 0.0
"""A site with n rows has n to this power votes on the level of all constants: 0 for one vote, 1 for one per row."""
_LEAST_BETWEEN = 0.04
_TURNS = 12


@dataclass(frozen=True)
class SiteFit:
    """Result of a linear fit."""

    moves: Floats
    """Changes of the logarithms of the constants, shape (constants,)."""
    covariance: Floats
    """Posterior covariance of them, shape (constants, constants)."""
    between: float
    """Standard deviation of the effects of sites."""
    noise: Floats
    """Standard deviation of every row's noise, shape (rows,)."""
    effects: dict[str, float]
    """Expected effect of every site with a row in the fit."""


class Linear:
    """Errors of runs and their derivatives at one point, from which fits to parts of the rows follow to first order."""

    def __init__(self, rows: Timed, values: Mapping[str, float]) -> None:
        self.rows, self.values = rows, dict(values)
        self.errors, self.jacobian = rows.jacobian(values)
        table = constants()
        self._deviation = np.array([math.log(value / (table[name].prior or value)) for name, value in values.items()])
        self._precision = 1 / np.array([table[name].spread for name in values]) ** 2
        # Users' code has code of its own, whose effect is another figure than the pace of hardware.
        self.fitted = ~rows.users_code
        self._without: dict[str, SiteFit] = {}

    def solve(self, used: NDArray[np.bool_]) -> SiteFit:
        """Fit to the rows `used`."""
        members = [np.flatnonzero((self.rows.sites == name) & used) for name in np.unique(self.rows.sites[used])]
        noise = np.full(len(self.errors), 0.06)
        row_weights, site_weights = np.ones(len(self.errors)), np.ones(len(members))
        votes = np.array([len(rows) ** _VOTES for rows in members])
        between, moves, effects = 0.12, np.zeros(len(self.values)), np.zeros(len(members))
        for _ in range(_TURNS):
            matrix, right = self._normal(members, row_weights / noise**2, site_weights * votes / between**2)
            moves = np.linalg.solve(matrix, right)
            residuals = self.errors + self.jacobian @ moves
            uncertainty, scatter = np.zeros(len(members)), np.zeros(len(members))
            for number, rows in enumerate(members):
                precise = row_weights[rows] / noise[rows] ** 2
                uncertainty[number] = 1 / (site_weights[number] / between**2 + precise.sum())
                effects[number] = precise @ residuals[rows] * uncertainty[number]
                away = residuals[rows] - effects[number]
                scatter[number] = (row_weights[rows] * away**2).sum() + len(rows) * uncertainty[number]
            counts = np.array([len(rows) for rows in members], dtype=np.float64)
            pooled = scatter.sum() / max(counts.sum(), 1.0)
            deviations = np.sqrt((scatter + _PRIOR_ROWS * pooled) / (counts + _PRIOR_ROWS))
            for number, rows in enumerate(members):
                noise[rows] = max(float(deviations[number]), _LEAST_NOISE)
                away = (residuals[rows] - effects[number]) / noise[rows]
                row_weights[rows] = (_FREEDOM + 1) / (_FREEDOM + away**2)
            if members:
                between = max(math.sqrt(float(np.mean(site_weights * effects**2 + uncertainty))), _LEAST_BETWEEN)
                site_weights = (_FREEDOM + 1) / (_FREEDOM + (effects / between) ** 2)
        # The votes choose the values. How well these are known follows from the effects of the sites alone.
        matrix, _ = self._normal(members, row_weights / noise**2, site_weights / between**2)
        names = [str(self.rows.sites[rows[0]]) for rows in members]
        return SiteFit(moves, np.linalg.inv(matrix), between, noise, dict(zip(names, map(float, effects), strict=True)))

    def _normal(
        self, members: list[NDArray[np.intp]], row_precision: Floats, site_precision: Floats
    ) -> tuple[Floats, Floats]:
        """Matrix and right side of the normal equations, marginalized over the effects of the sites."""
        matrix, right = np.diag(self._precision), -self._precision * self._deviation
        for rows, of_site in zip(members, site_precision, strict=True):
            precise = row_precision[rows] / (_UNMODELED**2 * len(rows) ** _ALIKE)
            j, e = self.jacobian[rows], self.errors[rows]
            shrink = 1 / (of_site + precise.sum())
            level_j, level_e = precise @ j, precise @ e
            matrix = matrix + j.T @ (precise[:, None] * j) - shrink * np.outer(level_j, level_j)
            right = right - j.T @ (precise * e) + shrink * level_j * level_e
        return matrix, right

    def without(self, publication: str) -> SiteFit:
        """Fit to the rows of all other publications."""
        others = self.rows.publications != publication
        key = publication if (self.fitted & ~others).any() else ""
        if key not in self._without:
            self._without[key] = self.solve(self.fitted & others)
        return self._without[key]

    def left_out(self) -> Floats:
        """Error of every row with constants fitted without any row of its publication, shape (rows,)."""
        result = np.empty_like(self.errors)
        for name in np.unique(self.rows.publications):
            rows = self.rows.publications == name
            result[rows] = self.errors[rows] + self.jacobian[rows] @ self.without(name).moves
        return result

    def runs_left_out(self) -> Runs:
        """Every row with its publication left out of the fit."""
        rows = self.rows
        return Runs(self.left_out(), rows.groups(), rows.kinds(), rows.publications)


def fit(rows: Timed, start: Mapping[str, float], *, rounds: int = 8, show: bool = True) -> Linear:
    """Fit by Gauss-Newton rounds on the logarithms of the constants; the result holds the last point."""
    point = Linear(rows, start)
    for turn in range(rounds):
        moves = np.clip(point.solve(point.fitted).moves, -0.4, 0.4)
        largest = float(np.abs(moves).max(initial=0.0))
        if show:
            print(f"round {turn + 1}: largest change {100 * largest:.1f} %", flush=True)
        if largest < 0.01:
            break
        values = {name: value * math.exp(move) for (name, value), move in zip(point.values.items(), moves, strict=True)}
        point = Linear(rows, values)
    return point
