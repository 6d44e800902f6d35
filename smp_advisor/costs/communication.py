"""Time of collectives by topology: NVLink or PCIe inside the node, EFA between nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.costs.constants import constant, gpu_constant
from smp_advisor.elementwise import interpolated, maximum, minimum, quotient, where

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.elementwise import Bools, Floats


__all__ = [
    "all_gather_seconds",
    "all_reduce_seconds",
    "all_to_all_seconds",
    "bus_bytes_per_second",
    "point_to_point_seconds",
]


def _intra_efficiency(cluster: Cluster, members: Floats) -> Floats:
    """Achieved share of the one-direction link rate, for a ring of `members` GPUs in one node."""
    link = cluster.instance.intra_node.lower()
    if "nvlink" not in link:
        return gpu_constant("pcie_efficiency", cluster.instance.gpu)
    if "cube mesh" in link:
        # A small group of a cube mesh uses few of the links.
        names = ("2", "4", "8")
        points = [constant(f"communication.cube_mesh_efficiency_{n}") for n in names]
        return interpolated(members, (2, 4, 8), points)
    return constant("communication.nvswitch_efficiency")


def _network(cluster: Cluster, sharing: Floats) -> Floats:
    """Bytes per second of one of `sharing` groups that use a node's network at the same time.

    The rings of one group use all network cards. Several groups, each with one GPU in the node, slow each other down.
    """
    share = constant("communication.network_efficiency") * where(
        sharing > 1, constant("communication.shared_network_share"), 1.0
    )
    rate: Floats = cluster.inter_node_bytes_per_s_per_node * share / sharing
    return rate


def bus_bytes_per_second(cluster: Cluster, members: Floats, stride: Floats) -> tuple[Floats, Bools]:
    """Ring bandwidth of one of many equal groups that run together, and whether the group is within a node.

    Parameters
    ----------
    members
        GPUs per group, shape (n,).
    stride
        Distance in ranks between adjacent members, shape (n,). There are k interleaved groups of stride k; across
        nodes, min(k, GPUs per node) of them share the node's network.
    """
    per_node = cluster.instance.gpus
    # A group size that does not divide the node's GPUs leaves the node somewhere.
    inside = (per_node % minimum(members * stride, per_node) == 0) & (members * stride <= per_node)
    in_node_members = maximum(where(inside, members, per_node // minimum(stride, per_node)), 1)
    link = cluster.intra_node_bytes_per_s * _intra_efficiency(cluster, in_node_members)
    sharing = minimum(stride, per_node)
    network = _network(cluster, sharing)
    crossing = where(in_node_members > 1, minimum(link, network), network)
    return where(inside, link, crossing), inside


def _seconds(cluster: Cluster, bytes_: Floats, members: Floats, stride: Floats, rounds: int) -> Floats:
    rate, inside = bus_bytes_per_second(cluster, members, stride)
    # A ring passes every member once per round. Each edge between nodes costs a network hop.
    edges = where(inside, 0, minimum(members, -(-members * stride // cluster.instance.gpus)))
    hops = (members - 1 - edges) * constant("communication.intra_hop_seconds") + edges * constant(
        "communication.inter_hop_seconds"
    )
    latency = constant("communication.start_seconds") + rounds * hops
    share = rounds * (members - 1) / maximum(members, 1)
    time = latency + quotient(share * bytes_, rate)
    return where((members > 1) & (bytes_ > 0), time, 0.0)


def all_reduce_seconds(cluster: Cluster, bytes_: Floats, members: Floats, stride: Floats) -> Floats:
    """Ring all-reduce of `bytes_` per GPU: 2 (n - 1) / n of them cross each link (Patarasuk and Yuan 2009)."""
    return _seconds(cluster, bytes_, members, stride, rounds=2)


def all_gather_seconds(cluster: Cluster, bytes_: Floats, members: Floats, stride: Floats) -> Floats:
    """Ring all-gather or reduce-scatter whose full size is `bytes_`: (n - 1) / n of them cross each link."""
    return _seconds(cluster, bytes_, members, stride, rounds=1)


def all_to_all_seconds(cluster: Cluster, bytes_: Floats, members: Floats, stride: Floats) -> Floats:
    """All-to-all: every GPU sends (n - 1) / n of its `bytes_` to its group, in smaller messages than a ring's."""
    return _seconds(cluster, bytes_ / constant("communication.all_to_all_share"), members, stride, rounds=1)


def point_to_point_seconds(cluster: Cluster, bytes_: Floats, members: Floats, stride: Floats) -> Floats:
    """Slowest transfer of a pipeline of `members` stages, with adjacent stages `stride` ranks apart.

    Where the pipeline leaves the node, `stride` of its GPUs send together.
    """
    per_node = cluster.instance.gpus
    inside = (per_node % minimum(members * stride, per_node) == 0) & (members * stride <= per_node)
    link = cluster.intra_node_bytes_per_s * _intra_efficiency(cluster, 2)
    senders = minimum(stride, per_node)
    network = _network(cluster, senders)
    rate = where(inside, link, network)
    return constant("communication.start_seconds") + quotient(bytes_, rate)
