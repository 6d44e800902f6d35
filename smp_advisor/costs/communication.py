"""Collectives by topology: NVLink or PCIe inside the node, EFA between nodes."""

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
    """Share of the one-direction link rate that a ring of `members` GPUs in one node reaches."""
    link = cluster.instance.intra_node.lower()
    if "nvlink" not in link:
        return np.full(members.shape, gpu_constant("pcie_efficiency", cluster.instance.gpu))
    if "cube mesh" in link:
        # Few GPUs of a cube mesh share few of the links.
        names = ("2", "4", "8")
        points = [constant(f"communication.cube_mesh_efficiency_{n}") for n in names]
        return np.interp(members, [2, 4, 8], points)
    return np.full(members.shape, constant("communication.nvswitch_efficiency"))


def _network(cluster: Cluster, sharing: Ints) -> Floats:
    """Bytes a second of one of `sharing` groups that cross a node's edge at once.

    One group's rings use all network cards; several groups, each with one GPU in the node, get in each other's way.
    """
    share = constant("communication.network_efficiency") * np.where(
        sharing > 1, constant("communication.shared_network_share"), 1.0
    )
    rate: Floats = cluster.inter_node_bytes_per_s_per_node * share / sharing
    return rate


def bus_bytes_per_second(cluster: Cluster, members: Ints, stride: Ints) -> tuple[Floats, NDArray[np.bool_]]:
    """Ring bandwidth of one of many like groups working at once, and whether the group stays within a node.

    Parameters
    ----------
    members
        GPUs of a group, shape (n,).
    stride
        Distance in ranks between neighbours, shape (n,). Groups with stride k come in k interleaved copies; where they
        cross nodes, min(k, GPUs per node) of them share the node's network.
    """
    per_node = cluster.instance.gpus
    members, stride = np.asarray(members), np.asarray(stride)
    # A group that does not divide the node reaches over its edge somewhere.
    inside = (per_node % np.minimum(members * stride, per_node) == 0) & (members * stride <= per_node)
    in_node_members = np.clip(np.where(inside, members, per_node // np.minimum(stride, per_node)), 1, None)
    link = cluster.intra_node_bytes_per_s * _intra_efficiency(cluster, in_node_members)
    sharing = np.minimum(stride, per_node)
    network = _network(cluster, sharing)
    crossing = np.where(in_node_members > 1, np.minimum(link, network), network)
    return np.where(inside, link, crossing), inside


def _seconds(cluster: Cluster, bytes_: Floats, members: Ints, stride: Ints, rounds: int) -> Floats:
    rate, inside = bus_bytes_per_second(cluster, members, stride)
    # A ring passes every member once a round; each edge between nodes costs a network hop.
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
    """Every GPU sends (n - 1) / n of its `bytes_` to the others of its group, in messages smaller than a ring's."""
    return _seconds(cluster, bytes_ / constant("communication.all_to_all_share"), members, stride, rounds=1)


def point_to_point_seconds(cluster: Cluster, bytes_: Floats, members: Ints, stride: Ints) -> Floats:
    """Slowest hand-over of a pipeline of `members` stages whose neighbours are `stride` ranks apart.

    Where the pipeline leaves the node, the `stride` GPUs at the node's edge send at once.
    """
    per_node = cluster.instance.gpus
    inside = (per_node % np.minimum(members * stride, per_node) == 0) & (members * stride <= per_node)
    link = cluster.intra_node_bytes_per_s * _intra_efficiency(cluster, np.full(stride.shape, 2))
    senders = np.minimum(stride, per_node)
    network = _network(cluster, senders)
    rate = np.where(inside, link, network)
    with np.errstate(divide="ignore"):
        return constant("communication.start_seconds") + bytes_ / rate
