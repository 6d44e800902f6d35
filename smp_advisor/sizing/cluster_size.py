"""One cluster with the best plan on it, and the saving of one cluster over another."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smp_advisor.costs.intervals import kind_correlation
from smp_advisor.costs.uncertainty import run_spread, source_spread

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.workload.job import Job

__all__ = ["ClusterSize", "saving"]

_TWO_SIDED = 1.96
"""Quantile of a 95 % interval of the normal distribution."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterSize:
    """A cluster, and the best plan on it."""

    cluster: Cluster
    library: str
    job: Job
    """With the library's own precision and attention."""
    estimate: Estimate | None
    """Estimate of the best plan; None if no plan fits."""
    kind: str = ""
    """Kind of the plan (`plan_kinds`), on which the error of its time depends."""
    stack: str = ""
    """Kind of training code of the plan."""
    nearest_gib: float | None = None
    """GiB per GPU of the plan that needs the least, if none fits; None if there is no plan."""

    @property
    def fits(self) -> bool:
        """Whether a plan fits with the required probability."""
        return self.estimate is not None

    @property
    def name(self) -> str:
        """The cluster in words: ``16 x ml.p4d.24xlarge``."""
        return f"{self.cluster.nodes} x {self.cluster.instance.name}"

    @property
    def days(self) -> float | None:
        """Days of the run; None without a plan or tokens."""
        return None if self.estimate is None else self.estimate.days

    @property
    def usd(self) -> float | None:
        """USD of the run, or without tokens per million tokens; None without a plan or a price."""
        if self.estimate is None:
            return None
        return self.estimate.usd_per_million_tokens if self.estimate.days is None else self.estimate.usd_total

    @property
    def tokens_per_second(self) -> float:
        """Throughput, without overheads of the run; 0 without a plan."""
        return 0.0 if self.estimate is None else self.estimate.tokens_per_second


def saving(cheaper: ClusterSize, dearer: ClusterSize) -> tuple[float, float, float] | None:
    """Share of the cost that a cluster saves over another, and the ends of its 95 % interval; None without prices.

    Errors of the step time are log-normal. On one instance type the error of the script and the machine cancels, and
    that of each run remains (`run_spread`). Between two types, or one node and several, the errors of the kinds of plan
    are correlated (`kind_correlation`), and the remainder does not cancel.
    """
    if cheaper.usd is None or dearer.usd is None:
        return None
    own = sum(run_spread(size.stack, size.kind) ** 2 for size in (cheaper, dearer))
    ratio = cheaper.usd / dearer.usd
    wide = math.exp(_TWO_SIDED * math.sqrt(_common(cheaper, dearer) + own))
    return 1 - ratio, 1 - ratio * wide, 1 - ratio / wide


def _common(left: ClusterSize, right: ClusterSize) -> float:
    """Variance of the quotient of two step times by the errors that runs of one source share."""
    if left.cluster.instance.name == right.cluster.instance.name and left.kind == right.kind:
        return 0.0
    first, second = source_spread(left.stack, left.kind), source_spread(right.stack, right.kind)
    return first**2 + second**2 - 2 * kind_correlation() * first * second
