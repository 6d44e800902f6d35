"""Links of a group of GPUs: where its members are, and the rates and delays between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smp_advisor.costs.constants import constant, gpu_constant
from smp_advisor.elementwise import interpolated, minimum, where

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.elementwise import Bools, Floats

__all__ = ["MOST_MEASURED", "Group", "delay", "intra_rate", "is_first_generation", "network_rate"]

_FIRST_GENERATION_GBPS = 400
"""Network of a node up to which EFA is of the first generation (p3dn, p4d, p4de)."""
MOST_MEASURED = 256
"""GPUs of the largest measured collective."""


@dataclass(frozen=True, slots=True)
class Group:
    """One of many equal groups that communicate together, arrays of shape (n,)."""

    members: Floats
    """GPUs per group."""
    inside: Bools
    """Whether the group is within a node."""
    in_node: Floats
    """Members in one node."""
    nodes: Floats
    """Nodes of the group."""
    sharing: Floats
    """Groups that share a node's network."""

    @classmethod
    def of(cls, cluster: Cluster, members: Floats, stride: Floats) -> Group:
        """Placement of a group.

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
        sharing = minimum(stride, per_node)
        return cls(
            members=members,
            inside=inside,
            in_node=minimum(where(inside, members, per_node // sharing), members),
            nodes=where(inside, 1, minimum(members, -(-members * stride // per_node))),
            sharing=sharing,
        )


def is_first_generation(cluster: Cluster) -> bool:
    """Whether the nodes have EFA devices of the first generation, on which no all-gather was measured."""
    return cluster.instance.efa and cluster.instance.inter_node_gbps <= _FIRST_GENERATION_GBPS


def delay(cluster: Cluster) -> Floats:
    """Latency of the node's EFA devices relative to those of p5."""
    return constant("communication.efa_first_generation_delay") if is_first_generation(cluster) else 1.0


def intra_rate(cluster: Cluster, members: Floats) -> Floats:
    """Bytes per second of a ring of `members` GPUs in one node, per GPU and direction."""
    return cluster.intra_node_bytes_per_s * _intra_efficiency(cluster, members)


def _intra_efficiency(cluster: Cluster, members: Floats) -> Floats:
    link = cluster.instance.intra_node.lower()
    if "nvlink" not in link:
        return gpu_constant("pcie_efficiency", cluster.instance.gpu)
    if "cube mesh" in link:
        # A small group of a cube mesh uses few of the links.
        names = ("2", "4", "8")
        points = [float(constant(f"communication.cube_mesh_efficiency_{n}")) for n in names]
        return interpolated(members, (2, 4, 8), points)
    return constant("communication.nvswitch_efficiency")


def network_rate(cluster: Cluster, sharing: Floats) -> Floats:
    """Bytes per second of one of `sharing` groups that use a node's network at the same time.

    The rings of one group use all network cards. Several groups, each with one GPU in the node, slow each other down.
    """
    measured = cluster.instance.efa and cluster.instance.gpudirect_rdma
    name = "communication.efa_efficiency" if measured else "communication.network_efficiency"
    share = constant(name) * where(sharing > 1, constant("communication.shared_network_share"), 1.0)
    rate: Floats = cluster.inter_node_bytes_per_s_per_node * share / sharing
    return rate
