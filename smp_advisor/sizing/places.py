"""Clusters that a request leaves open: instance types, numbers of nodes, and the goal of the choice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smp_advisor.cluster.cluster import Cluster
from smp_advisor.cluster.instance import Instance
from smp_advisor.cluster.table import completed_instance
from smp_advisor.errors import AdvisorError, ClusterError
from smp_advisor.guidance.library_candidates import library_policy
from smp_advisor.libraries.support import suggested_instances

if TYPE_CHECKING:
    from smp_advisor.sizing.choice import Goal
    from smp_advisor.sizing.limits import Limits

__all__ = ["ANY", "AUTO", "COUNTS", "SMALLEST", "Places", "places_of", "suitable"]

AUTO = "auto"
"""The library is chosen."""
ANY = "any"
"""Every suitable instance type."""
SMALLEST = "smallest"
"""The smallest number of nodes that fits."""
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Numbers of nodes that are tried."""
_MOST = 1024
"""Clusters of one question, which take about half a minute."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """The clusters of a request, and how to choose among them."""

    clusters: tuple[Cluster, ...]
    goal: Goal
    requested: Cluster | None = None
    """The cluster that the user named, if more are tried."""

    @property
    def fixed(self) -> Cluster | None:
        """The cluster, if the request leaves nothing open."""
        return self.clusters[0] if len(self.clusters) == 1 else None


def places_of(
    cluster: object,
    count: object,
    *,
    limits: Limits,
    library: str,
    cost: bool = False,
    counts: object = None,
) -> Places:
    """The clusters of a request.

    One instance type and a number of nodes is one cluster. ``any`` or several types leave the type open; ``smallest``,
    or a deadline or budget without a number of nodes, the number. The objective ``cost`` tries fewer nodes and the
    library's other types as well.

    Parameters
    ----------
    cluster
        A `Cluster`, an instance or its name, several of them, or ``any``.
    count
        Number of nodes, ``smallest``, or None.
    cost
        Whether the objective is the cost.
    counts
        Numbers of nodes to try instead of `COUNTS`, or None.

    Raises
    ------
    AdvisorError
        The cluster, the count or the counts are none of these.
    """
    if isinstance(cluster, Cluster):
        if count not in (None, cluster.nodes):
            raise AdvisorError(
                f"instance_count={count} contradicts the cluster's {cluster.nodes} nodes; pass one of them."
            )
        machine, number = cluster.instance, cluster.nodes
        return places_of(machine, number, limits=limits, library=library, cost=cost, counts=counts)
    several = cluster == ANY or isinstance(cluster, list | tuple)
    types = _types(cluster, library)
    nodes = 1 if count is None and counts is None and not (several or limits) else _nodes(count)
    if cost and not several and nodes is not None:
        requested = Cluster(types[0], nodes)
        _require_price("objective='cost'", requested.instance)
        return Places(clusters=_comparable(requested, library), goal="cheapest", requested=requested)
    if limits.max_usd is not None and len(types) == 1:
        _require_price("max_usd", types[0])
    sizes = _numbers(counts) if counts is not None else COUNTS if nodes is None else (nodes,)
    if len(types) * len(sizes) > _MOST:
        raise AdvisorError(f"{len(types) * len(sizes):,} clusters are too many for one question: at most {_MOST:,}.")
    return Places(
        clusters=tuple(Cluster(machine, nodes) for machine in types for nodes in sizes),
        goal=_goal(limits, cost=cost, count=count, types=len(types)),
    )


def _require_price(what: str, machine: Instance) -> None:
    if machine.usd_per_hour is None:
        raise AdvisorError(
            f"{what} needs a price, and none is known for {machine.name}: leave it out, or use Cluster.custom(...,"
            " usd_per_hour=...)."
        )


def _goal(limits: Limits, *, cost: bool, count: object, types: int) -> Goal:
    """A budget or a number of nodes leaves the speed to choose by, a deadline or an open request the cost."""
    if count == SMALLEST:
        return "smallest"
    if not cost and limits.max_usd is not None:
        return "fastest"
    if cost or limits.max_days is not None:
        return "cheapest"
    return "fastest" if count is not None else "cheapest" if types > 1 else "smallest"


def _nodes(count: object) -> int | None:
    """The number of nodes; None where it is open."""
    if count is None or count == SMALLEST:
        return None
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ClusterError(
            f"The number of nodes must be a whole number of at least 1 or 'smallest', not {count!r:.40}."
        )
    return count


def _numbers(counts: object) -> tuple[int, ...]:
    """Numbers of nodes of a request, which `Cluster` checks."""
    numbers = tuple(counts) if isinstance(counts, Iterable) and not isinstance(counts, str) else ()
    if not numbers:
        raise ClusterError(f"counts must be numbers of nodes, for example (2, 4, 8), not {counts!r:.40}.")
    return numbers


def _types(cluster: object, library: str) -> list[Instance]:
    """Instance types of a request."""
    if cluster == ANY:
        return suitable(library)
    entries = cluster if isinstance(cluster, list | tuple) else [cluster]
    if not entries:
        raise ClusterError("The list of instances is empty: name at least one, or 'any'.")
    return list(dict.fromkeys(map(_instance, entries)))


def _instance(entry: object) -> Instance:
    if isinstance(entry, Instance):
        return entry
    if isinstance(entry, str):
        return completed_instance(entry)
    raise ClusterError(
        f"A cluster is a Cluster, an instance such as 'ml.p4d.24xlarge', a list of instances, or 'any', not"
        f" {entry!r:.80}."
    )


def suitable(library: str) -> list[Instance]:
    """Types with a price that AWS suggests for a library, or for one of those that ``auto`` prefers."""
    names = library_policy().order if library == AUTO else (library,)
    return _distinct(machine for name in names for machine in suggested_instances(name))


def _distinct(instances: Iterable[Instance]) -> list[Instance]:
    """One type of those with the same GPUs: the cheapest with a single GPU, the fastest network with several."""
    best: dict[tuple[str, int], Instance] = {}
    for machine in instances:
        if machine.usd_per_hour is None:
            continue
        key = machine.gpu, machine.gpus
        if key not in best or _merit(machine) > _merit(best[key]):
            best[key] = machine
    return list(best.values())


def _merit(machine: Instance) -> tuple[float, float]:
    price = -float(machine.usd_per_hour or 0.0)
    return (machine.inter_node_gbps, price) if machine.gpus > 1 else (price, machine.inter_node_gbps)


def _comparable(requested: Cluster, library: str) -> tuple[Cluster, ...]:
    """Clusters of up to the requested nodes: of the requested type first, then of the other suitable ones."""
    counts = sorted({nodes for nodes in COUNTS if nodes < requested.nodes} | {requested.nodes})
    further = [machine for machine in suitable(library) if machine.name != requested.instance.name]
    return tuple(Cluster(machine, nodes) for machine in [requested.instance, *further] for nodes in counts)
