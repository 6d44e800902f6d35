"""Joint draws of the measured step times of several plans: their errors are correlated."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from smp_advisor.costs.constants import overriding
from smp_advisor.costs.evaluate import learned_width, seconds_columns
from smp_advisor.costs.learned import rule, targets
from smp_advisor.costs.uncertainty import (
    DRAWS,
    constant_draws,
    kind_correlation,
    plan_kinds,
    spreads,
)
from smp_advisor.costs.world import stack_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

_LEAST_SHARE = 0.5
"""Least share of the spread between sources that no constant explains."""


def layout_draws(model: Model, cluster: Cluster, job: Job, layouts: Sequence[Layout]) -> NDArray[np.float64]:
    """Joint draws of the seconds per step for the rows of some layouts, shape (64, n), narrowed by measured runs.

    Every draw has its own constants (`constant_draws`), one effect of your script and cluster, which plans of the same
    kind share and plans of other kinds share in part, and an error of the configuration, which similar plans share.
    Quotients of two columns thus show how certain it is that one plan is faster. The draws are the same at every call.
    """
    before_runs = replace(job, calibration=None)
    middle = _logarithm(model, cluster, before_runs, layouts)
    with overriding({name: draws[:, np.newaxis] for name, draws in constant_draws().items()}):
        logarithms = _logarithm(model, cluster, before_runs, layouts, (DRAWS,))
    kinds = [str(kind) for layout in layouts for kind in plan_kinds(layout, cluster)]
    stacks = [name for layout in layouts for name in [stack_of(job, layout).name] * len(layout)]
    figures = np.concatenate([targets(model, cluster, job, layout).figures[:, 2:] for layout in layouts])
    errors = logarithms + _effects(logarithms, kinds, stacks, figures)
    if job.calibration is None:
        return np.exp(errors)
    width = np.concatenate([learned_width(model, cluster, job, layout) for layout in layouts])
    return np.exp(_logarithm(model, cluster, job, layouts) + width * (errors - middle))


def _logarithm(
    model: Model, cluster: Cluster, job: Job, layouts: Sequence[Layout], draws: tuple[int, ...] = ()
) -> NDArray[np.float64]:
    """Logarithms of the predicted step times, shape (n,), or (d, n) for draws of the constants."""
    seconds = [sum(seconds_columns(model, cluster, job, layout, draws).values()) for layout in layouts]
    result: NDArray[np.float64] = np.log(np.concatenate(seconds, axis=-1))
    return result


def _effects(
    logarithms: NDArray[np.float64], kinds: list[str], stacks: list[str], figures: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Effects of source and configuration on the logarithm of the step time, shape of `logarithms`."""
    source, run = np.array([spreads(stack, kind) for stack, kind in zip(stacks, kinds, strict=True)]).T
    # The spread between sources was measured with the doubt about the constants in it.
    of_constants = logarithms.var(axis=0)
    unexplained = np.sqrt(np.maximum(source**2 - of_constants, (_LEAST_SHARE * source) ** 2))
    random, correlation, names = np.random.default_rng(0), kind_correlation(), sorted(set(kinds))
    of_kind = np.array([names.index(kind) for kind in kinds])
    common = random.standard_normal((len(logarithms), 1))
    own = random.standard_normal((len(logarithms), len(names)))[:, of_kind]
    effect = np.sqrt(correlation) * common + np.sqrt(1 - correlation) * own
    # Errors of configurations are alike as far as the figures of the plans are.
    distance = np.abs(figures[:, np.newaxis, :] - figures).sum(axis=2)
    alike = np.where(of_kind[:, np.newaxis] == of_kind, 1.0, rule("draws")["kind"])
    alike *= rule("draws")["per_doubling"] ** distance
    lower = np.linalg.cholesky(alike + 1e-9 * np.eye(len(figures)))  # plans may have the same figures
    result: NDArray[np.float64] = unexplained * effect + run * (random.standard_normal((DRAWS, len(figures))) @ lower.T)
    return result
