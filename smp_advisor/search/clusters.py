"""Clusters that a request leaves open, and the best plan on each of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from smp_advisor.arguments import LIMITS, SMALLEST, amount_of, options
from smp_advisor.cluster.cluster import Cluster
from smp_advisor.cluster.table import Instance, completed_instance
from smp_advisor.core import GIB
from smp_advisor.core.files import sentence
from smp_advisor.costs.evaluate import estimate
from smp_advisor.costs.uncertainty import plan_kinds
from smp_advisor.costs.world import stack_of
from smp_advisor.errors import AdvisorError, ClusterError, JobError
from smp_advisor.libraries.version import suggested_instances
from smp_advisor.search.candidates import (
    job_for,
    library_policy,
    obstacle,
    pins_for,
    search_in_bf16_if_possible,
)
from smp_advisor.search.library import preferred_library

if TYPE_CHECKING:
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.search.candidates import Request
    from smp_advisor.search.rank import Objective
    from smp_advisor.workload.job import Job

Goal = Literal["smallest", "fastest", "cheapest"]

AUTO = "auto"
"""The library is chosen."""
ANY = "any"
"""Every suitable instance type."""
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Numbers of nodes that are tried."""
_MOST = 1024
"""Clusters of one question, which take about half a minute."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The most days, USD and GPU-hours of a run. None: no limit."""

    max_days: float | None = None
    max_usd: float | None = None
    max_gpu_hours: float | None = None

    @classmethod
    def of(cls, job: Job, **limits: object) -> Limits:
        """Return the limits as a user writes them: numbers, or text such as ``250k``."""
        table = options()
        result = cls(
            **{
                name: amount_of(name, amount, table[name].example, unit=table[name].unit)
                for name, amount in limits.items()
                if amount is not None
            }
        )
        if result and job.tokens is None:
            name = next(name for name in LIMITS if getattr(result, name) is not None)
            raise JobError(f"{name} needs the tokens of the run: add tokens='300B', for example.")
        return result

    def __bool__(self) -> bool:
        return any(getattr(self, name) is not None for name in LIMITS)

    def allow(self, days: float | None, usd: float | None, gpus: int) -> bool:
        """Return whether a run is within the limits. Unknown figures are not within a limit."""
        of_run = {"max_days": days, "max_usd": usd, "max_gpu_hours": None if days is None else 24 * days * gpus}
        most = {name: getattr(self, name) for name in LIMITS}
        return all(most[name] is None or (value is not None and value <= most[name]) for name, value in of_run.items())

    @property
    def words(self) -> str:
        """The limits as a phrase: ``within 30 days and 250,000 USD``; empty without limits."""
        parts = [
            *([] if self.max_days is None else [f"{self.max_days:g} day{'' if self.max_days == 1 else 's'}"]),
            *([] if self.max_usd is None else [f"{self.max_usd:,.{0 if self.max_usd >= 10 else 2}f} USD"]),
            *([] if self.max_gpu_hours is None else [f"{self.max_gpu_hours:,.0f} GPU-hours"]),
        ]
        return f"within {' and '.join(parts)}" if parts else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """The clusters of a request, and how to choose among them."""

    clusters: tuple[Cluster, ...]
    goal: Goal
    requested: Cluster | None = None
    """The cluster that the user named, if more are tried."""
    any_number: bool = False
    """Whether the numbers of nodes are open: between those of `COUNTS`, too."""

    @property
    def fixed(self) -> Cluster | None:
        return self.clusters[0] if len(self.clusters) == 1 else None


def places_of(
    cluster: object, count: object, *, limits: Limits, library: str, cost: bool = False, counts: object = None
) -> Places:
    if isinstance(cluster, Cluster):
        if count not in (None, cluster.nodes):
            raise AdvisorError(sentence("search", "two_counts", count=count, cluster=cluster))
        machine, number = cluster.instance, cluster.nodes
        return places_of(machine, number, limits=limits, library=library, cost=cost, counts=counts)
    several = cluster == ANY or isinstance(cluster, list | tuple)
    types = suitable(library) if cluster == ANY else _named(cluster)
    nodes: int | None = 1 if count is None and counts is None and not (several or limits) else None
    if count is not None and count != SMALLEST:
        nodes = options()["instance_count"].checked(count, "The number of nodes")
    if cost and not several and nodes is not None:
        requested = Cluster(types[0], nodes)
        _require_price("objective='cost'", requested.instance)
        # Of up to the requested nodes: the requested type first, then the other suitable ones.
        fewer = sorted({count for count in COUNTS if count < nodes} | {nodes})
        machines = [types[0], *(machine for machine in suitable(library) if machine.name != types[0].name)]
        clusters = tuple(Cluster(machine, count) for machine in machines for count in fewer)
        return Places(clusters=clusters, goal="cheapest", requested=requested)
    if limits.max_usd is not None and len(types) == 1:
        _require_price("max_usd", types[0])
    sizes = _numbers(counts) if counts is not None else COUNTS if nodes is None else (nodes,)
    if len(types) * len(sizes) > _MOST:
        raise AdvisorError(f"{len(types) * len(sizes):,} clusters are too many for one question: at most {_MOST:,}.")
    return Places(
        clusters=tuple(Cluster(machine, nodes) for machine in types for nodes in sizes),
        goal=_goal(limits, cost=cost, count=count, types=len(types)),
        any_number=counts is None and nodes is None,
    )


def _goal(limits: Limits, *, cost: bool, count: object, types: int) -> Goal:
    """Return a budget or a number of nodes leaves the speed to choose by, a deadline or an open request the cost."""
    if count == SMALLEST:
        return "smallest"
    if not cost and (limits.max_usd is not None or (limits.max_gpu_hours is not None and limits.max_days is None)):
        return "fastest"
    if cost or limits.max_days is not None:
        return "cheapest"
    return "fastest" if count is not None else "cheapest" if types > 1 else "smallest"


def _require_price(what: str, machine: Instance) -> None:
    if machine.usd_per_hour is None:
        raise AdvisorError(sentence("search", "no_price", what=what, machine=machine))


def _numbers(counts: object) -> tuple[int, ...]:
    """Return the numbers of nodes of a request, which `Cluster` checks."""
    numbers = tuple(counts) if isinstance(counts, Iterable) and not isinstance(counts, str) else ()
    if not numbers:
        raise ClusterError(f"counts must be numbers of nodes, for example (2, 4, 8), not {counts!r:.40}.")
    return numbers


def _named(cluster: object) -> list[Instance]:
    entries = cluster if isinstance(cluster, list | tuple) else [cluster]
    if not entries:
        raise ClusterError("The list of instances is empty: name at least one, or 'any'.")
    types: list[Instance] = []
    for entry in entries:
        if not isinstance(entry, Instance | str):
            raise ClusterError(sentence("search", "no_cluster", entry=entry))
        types.append(completed_instance(entry) if isinstance(entry, str) else entry)
    return list(dict.fromkeys(types))


def suitable(library: str) -> list[Instance]:
    """Types with a price that AWS suggests for a library, or for one of those that ``auto`` prefers."""

    def merit(machine: Instance) -> tuple[float, float]:
        price = -float(machine.usd_per_hour or 0.0)
        return (machine.inter_node_gbps, price) if machine.gpus > 1 else (price, machine.inter_node_gbps)

    best: dict[tuple[str, int], Instance] = {}
    for name in library_policy().order if library == AUTO else (library,):
        for machine in suggested_instances(name):
            key = machine.gpu, machine.gpus
            if machine.usd_per_hour is not None and (key not in best or merit(machine) > merit(best[key])):
                best[key] = machine
    return list(best.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterSize:
    cluster: Cluster
    library: str
    job: Job
    """With the library's own precision and attention."""
    estimate: Estimate | None
    """Estimate of the best plan; None if no plan fits."""
    kind: str = ""
    stack: str = ""
    nearest_gib: float | None = None
    """GiB per GPU of the plan that needs the least, if none fits; None if there is no plan."""

    @property
    def fits(self) -> bool:
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


@dataclass(frozen=True, kw_only=True)
class Question:
    request: Request
    """Model, job and fixed settings, on one of the clusters."""
    library: str
    """Name of a library, or ``auto``."""
    objective: Objective = "throughput"
    """Rank of the plans of one cluster."""

    def having(self, **changes: Any) -> Question:
        return replace(self, request=replace(self.request, **changes))

    def training(self, **changes: Any) -> Question:
        return self.having(job=replace(self.request.job, **changes))


def hourly(cluster: Cluster) -> float:
    """USD per hour of a cluster; infinite without a price."""
    return math.inf if cluster.usd_per_hour is None else cluster.usd_per_hour


def holds_parameters(question: Question, cluster: Cluster) -> bool:
    """Return whether all memory of a cluster together can hold the parameters, so that it is worth a search."""
    adapter = question.request.job.adapter
    bits = 16 if adapter is None else adapter.base_bits
    memory = cluster.gpus * cluster.instance.usable_gpu_memory_gib
    return question.request.model.parameter_count * bits / 8 <= memory * GIB


def best_on(question: Question, cluster: Cluster) -> ClusterSize:
    """Return the best plan on a cluster, of the library that the policy prefers there."""
    here = question.having(cluster=cluster).request
    library = question.library
    if library == AUTO:
        try:
            library = preferred_library(here).library
        except AdvisorError:
            library = library_policy().archived
    size = _searched(here, library, question.objective, is_named=question.library != AUTO)
    obstacles = (obstacle(name, here) for name in library_policy().order)
    if (
        size.fits
        or here.unlisted
        or question.library != AUTO
        or not any(of and of[0] == "instance" for of in obstacles)
    ):
        return size
    # As where the library of one cluster is chosen: if nothing fits, libraries count that may run on the instance.
    unlisted = best_on(question.having(unlisted=True), cluster)
    return unlisted if unlisted.fits else size


def _searched(request: Request, library: str, objective: Objective, *, is_named: bool) -> ClusterSize:
    cluster, job = request.cluster, job_for(library, request)
    nothing = ClusterSize(cluster=cluster, library=library, job=job, estimate=None)
    excluded = obstacle(library, request)
    if is_named and excluded is not None and excluded[0] == "framework":
        excluded = None  # the user named the library, and with it the framework
    if excluded is not None or (job.precision == "bf16" and not cluster.instance.bf16):
        return nothing
    pins = pins_for(library, request)
    terms = {"library": library, "min_fit_probability": request.min_fit_probability, "pins": pins}
    try:
        job, result, _ = search_in_bf16_if_possible(
            request.model, cluster, job, objective, terms, user_settings=request.fixed_settings
        )
    except AdvisorError:
        return nothing  # a fixed setting that this cluster does not allow
    if not len(result.ranked):
        nearest = float(result.needed_gib.min()) if result.plans_enumerated else None
        return replace(nothing, nearest_gib=nearest)
    layout = result.space.layout.take(result.ranked[:1])
    return ClusterSize(
        cluster=cluster,
        library=library,
        job=job,
        estimate=estimate(request.model, cluster, job, result.best()),
        kind=str(plan_kinds(layout, cluster)[0]),
        stack=stack_of(job, layout).name,
    )
