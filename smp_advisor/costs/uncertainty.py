"""Uncertainty of the step time: joint draws of the fitted constants, and spreads between and within sources."""

from __future__ import annotations

import csv
import math
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np

from smp_advisor.costs.constants import constants
from smp_advisor.costs.intervals import kind_correlation, spreads

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["DRAWS", "comparison_spread", "constant_draws", "constant_names", "run_spread", "source_spread"]

DRAWS = 64


@cache
def _logarithms() -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Names, and logarithms of drawn over committed values, shape (64, names)."""
    text = resources.files("smp_advisor.costs").joinpath("data/draws.csv").read_text("utf-8")
    header, *rows = csv.reader(line for line in text.splitlines() if not line.startswith("#"))
    return tuple(header), np.array(rows, dtype=np.float64)


def constant_names() -> tuple[str, ...]:
    """Names of the constants that are fitted to published runs, in the order of `constant_draws`."""
    return _logarithms()[0]


def constant_draws() -> NDArray[np.float64]:
    """Joint draws of the fitted constants from their posterior distribution, shape (64, constants).

    The draws come from the Hessian of the last Gauss-Newton step of the fit, in which every source has an effect of its
    own, and from the priors. Constants that the runs determine only together, such as the rates of products and of
    memory, are correlated. A share, committed below 1, never exceeds 1; a factor, committed at 1, lies on both sides.
    The draws are the same at every call.

    Examples
    --------
    >>> constant_draws().shape == (64, len(constant_names()))
    True
    """
    names, logarithms = _logarithms()
    table = constants()
    committed = np.array([table[name].value for name in names])
    most = np.where(committed < 1, 1.0, np.inf)
    draws: NDArray[np.float64] = np.minimum(committed * np.exp(logarithms), most)
    return draws


def source_spread(stack: str, kind: str) -> float:
    """Spread between sources: one standard deviation of the logarithm of measured over predicted step time.

    All runs of one source (one script on one cluster) share this error. It is the error that one measured run of the
    source removes.

    Parameters
    ----------
    stack
        Kind of training code (`Job.stack`).
    kind
        Kind of plan (`plan_kinds`).
    """
    return spreads(kind, stack)[0]


def run_spread(stack: str, kind: str) -> float:
    """Spread within a source: the same for the runs of one source about their common error."""
    return spreads(kind, stack)[1]


def comparison_spread(stack: str, kind: str, to_kind: str, widths: tuple[float, float] = (1.0, 1.0)) -> float:
    """Doubt about a comparison: one standard deviation of the logarithm of the quotient of two step times.

    The plans run the same code on one cluster. Errors of plans of one kind are nearly equal and cancel. Those of two
    kinds are correlated (`kind_correlation`), and the remainder does not cancel.

    Parameters
    ----------
    widths
        Widths of the intervals of both relative to those without measured runs (`learned_width`).
    """
    if kind == to_kind:
        return 0.0
    first, second = widths[0] * source_spread(stack, kind), widths[1] * source_spread(stack, to_kind)
    return math.sqrt(first**2 + second**2 - 2 * kind_correlation() * first * second)
