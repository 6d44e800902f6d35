"""Time of collectives by topology: NVLink or PCIe inside the node, EFA between nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smp_advisor.costs.constants import constant, gpu_constant

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from smp_advisor.cluster.cluster import Cluster

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

__all__ = [
    "all_gather_seconds",
    "all_reduce_seconds",
    "all_to_all_seconds",
    "bus_bytes_per_second",
    "point_to_point_seconds",
]


def _intra_efficiency(cluster: Cluster, members: Ints) -> Floats:
    """Achieved share of the one-direction link rate, for a ring of `members` GPUs in one node."""
    link = cluster.instance.intra_node.lower()
    if "nvlink" not in link:
        return np.full(members.shape, gpu_constant("pcie_efficiency", cluster.instance.gpu))
    if "cube mesh" in link:
        # A small group of a cube mesh uses few of the links.
        names = ("2", "4", "8")
        points = [constant(f"communication.cube_mesh_efficiency_{n}") for n in names]
        return np.interp(members, [2, 4, 8], points)
    return np.full(members.shape, constant("communication.nvswitch_efficiency"))


def _network(cluster: Cluster, sharing: Ints) -> Floats:
    """Bytes per second of one of `sharing` groups that use a node's network at the same time.

    The rings of one group use all network cards. Several groups, each with one GPU in the node, slow each other down.
    """
    share = constant("communication.network_efficiency") * np.where(
        sharing > 1, constant("communication.shared_network_share"), 1.0
    )
    rate: Floats = cluster.inter_node_bytes_per_s_per_node * share / sharing
    return rate


def bus_bytes_per_second(cluster: Cluster, members: Ints, stride: Ints) -> tuple[Floats, NDArray[np.bool_]]:
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
    members, stride = np.asarray(members), np.asarray(stride)
    # A group size that does not divide the node's GPUs leaves the node somewhere.
    inside = (per_node % np.minimum(members * stride, per_node) == 0) & (members * stride <= per_node)
    in_node_members = np.clip(np.where(inside, members, per_node // np.minimum(stride, per_node)), 1, None)
    link = cluster.intra_node_bytes_per_s * _intra_efficiency(cluster, in_node_members)
    sharing = np.minimum(stride, per_node)
    network = _network(cluster, sharing)
    crossing = np.where(in_node_members > 1, np.minimum(link, network), network)
    return np.where(inside, link, crossing), inside


def _seconds(cluster: Cluster, bytes_: Floats, members: Ints, stride: Ints, rounds: int) -> Floats:
    rate, inside = bus_bytes_per_second(cluster, members, stride)
    # A ring passes every member once per round. Each edge between nodes costs a network hop.
    edges = np.where(inside, 0, np.minimum(members, -(-members * stride // cluster.instance.gpus)))
    hops = (members - 1 - edges) * constant("communication.intra_hop_seconds") + edges * constant(
        "communication.inter_hop_seconds"
    )
    latency = constant("communication.start_seconds") + rounds * hops
    share = rounds * (members - 1) / np.maximum(members, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        time = latency + share * bytes_ / rate
    return np.where((members > 1) & (bytes_ > 0), time, 0.0)


def all_reduce_seconds(cluster: Cluster, bytes_: Floats, members: Ints, stride: Ints) -> Floats:
    """Ring all-reduce of `bytes_` per GPU: 2 (n - 1) / n of them cross each link (Patarasuk and Yuan 2009)."""
    return _seconds(cluster, bytes_, members, stride, rounds=2)


def all_gather_seconds(cluster: Cluster, bytes_: Floats, members: Ints, stride: Ints) -> Floats:
    """Ring all-gather or reduce-scatter whose full size is `bytes_`: (n - 1) / n of them cross each link."""
    return _seconds(cluster, bytes_, members, stride, rounds=1)


def all_to_all_seconds(cluster: Cluster, bytes_: Floats, members: Ints, stride: Ints) -> Floats:
    """All-to-all: every GPU sends (n - 1) / n of its `bytes_` to its group, in smaller messages than a ring's."""
    return _seconds(cluster, bytes_ / constant("communication.all_to_all_share"), members, stride, rounds=1)


def point_to_point_seconds(cluster: Cluster, bytes_: Floats, members: Ints, stride: Ints) -> Floats:
    """Slowest transfer of a pipeline of `members` stages, with adjacent stages `stride` ranks apart.

    Where the pipeline leaves the node, `stride` of its GPUs send together.
    """
    per_node = cluster.instance.gpus
    inside = (per_node % np.minimum(members * stride, per_node) == 0) & (members * stride <= per_node)
    link = cluster.intra_node_bytes_per_s * _intra_efficiency(cluster, np.full(stride.shape, 2))
    senders = np.minimum(stride, per_node)
    network = _network(cluster, senders)
    rate = np.where(inside, link, network)
    with np.errstate(divide="ignore"):
        return constant("communication.start_seconds") + bytes_ / rate
