"""Joint draws of the measured step times of several plans: their errors are correlated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smp_advisor.costs.constants import overriding
from smp_advisor.costs.evaluate import seconds_columns
from smp_advisor.costs.intervals import kind_correlation, plan_kinds
from smp_advisor.costs.stack import stack_of
from smp_advisor.costs.uncertainty import constant_draws, constant_names, run_spread, source_spread
from smp_advisor.libraries.check import check_against
from smp_advisor.libraries.layouts import layout_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["step_time_draws"]

_LEAST_SHARE = 0.5
"""Least share of the spread between sources that no constant explains."""
MOST_PLANS = 10_000


def step_time_draws(model: Model, cluster: Cluster, job: Job, plans: Sequence[Plan]) -> NDArray[np.float64]:
    """Joint draws of the seconds per step of plans on one cluster, shape (64, n).

    Every draw has its own constants (`constant_draws`), one effect of your script and cluster, which plans of the same
    kind share and plans of other kinds share in part, and the scatter between runs. Quotients of two columns thus show
    how certain it is that one plan is faster. The draws are the same at every call.

    Raises
    ------
    PlanError
        A plan does not match the cluster, the model or the job.
    ValueError
        There are more than 10,000 plans.

    Examples
    --------
    >>> from smp_advisor import Cluster, Job, Model, Plan
    >>> plans = [Plan(library="fsdp", batch_size=batch) for batch in (1, 2)]
    >>> step_time_draws(Model.from_parameters(1e9), Cluster("ml.p4d.24xlarge", 1), Job(precision="bf16"), plans).shape
    (64, 2)
    """
    if len(plans) > MOST_PLANS:
        raise ValueError(f"step_time_draws takes at most {MOST_PLANS:,} plans, not {len(plans):,}.")
    for plan in plans:
        check_against(plan, cluster, model, job)
    names, draws = constant_names(), constant_draws()
    logarithms = np.zeros((len(draws), len(plans)))
    kinds, stacks = np.empty(len(plans), dtype=object), np.empty(len(plans), dtype=object)
    for library in {plan.library for plan in plans}:
        rows = [index for index, plan in enumerate(plans) if plan.library == library]
        layout = layout_of([plans[index] for index in rows], job, cluster)
        kinds[rows], stacks[rows] = plan_kinds(layout, cluster), stack_of(job, layout).name
        for number, draw in enumerate(draws):
            with overriding(dict(zip(names, map(float, draw), strict=True))):
                seconds = sum(seconds_columns(model, cluster, job, layout).values())
            logarithms[number, rows] = np.log(seconds)
    return np.exp(logarithms + _effects(logarithms, list(map(str, kinds)), list(map(str, stacks))))


def _effects(logarithms: NDArray[np.float64], kinds: list[str], stacks: list[str]) -> NDArray[np.float64]:
    """Effects of source and run on the logarithm of the step time, shape of `logarithms`."""
    source = np.array([source_spread(stack, kind) for stack, kind in zip(stacks, kinds, strict=True)])
    run = np.array([run_spread(stack, kind) for stack, kind in zip(stacks, kinds, strict=True)])
    # The spread between sources was measured with the doubt about the constants in it.
    of_constants = logarithms.var(axis=0)
    unexplained = np.sqrt(np.maximum(source**2 - of_constants, (_LEAST_SHARE * source) ** 2))
    random, correlation = np.random.default_rng(0), kind_correlation()
    common = random.standard_normal((len(logarithms), 1))
    names = sorted(set(kinds))
    own = random.standard_normal((len(logarithms), len(names)))[:, [names.index(kind) for kind in kinds]]
    effect = np.sqrt(correlation) * common + np.sqrt(1 - correlation) * own
    result: NDArray[np.float64] = unexplained * effect + run * random.standard_normal(logarithms.shape)
    return result
