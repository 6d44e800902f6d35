"""Time of collectives by topology: NVLink or PCIe inside the node, EFA between nodes.

Across nodes the laws are those of measured NCCL collectives over EFA (`benchmarks/collectives.py` compares them with
every row). A ring passes each member once per round, so an all-gather is set by the shard that each member contributes:
the delay of a hop, plus the shard over the rate of the network. An all-reduce is a ring or a tree, whichever is faster.
No reduce-scatter was measured across nodes: it is counted as an all-gather.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.costs.constants import constant
from smp_advisor.costs.links import MOST_MEASURED, Group, delay, intra_rate, is_first_generation, network_rate
from smp_advisor.elementwise import anywhere, binary_logarithm, inverted, maximum, minimum, quotient, where

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.elementwise import Bools, Floats


__all__ = [
    "all_gather_seconds",
    "all_reduce_seconds",
    "all_to_all_seconds",
    "bus_bytes_per_second",
    "point_to_point_seconds",
    "reduce_scatter_seconds",
    "sharded_gather_seconds",
]

_SMALL_MESSAGE_BYTES = 8 * 2**20
"""Size at which a hop of a tree takes the mean of its time for the smallest and for very large messages."""


def bus_bytes_per_second(cluster: Cluster, members: Floats, stride: Floats) -> tuple[Floats, Bools]:
    """Ring bandwidth of one of many equal groups that run together, and whether the group is within a node.

    Parameters
    ----------
    members, stride
        As in `Group.of`.
    """
    group = Group.of(cluster, members, stride)
    return _ring_rate(cluster, group), group.inside


def _ring_rate(cluster: Cluster, group: Group) -> Floats:
    link = intra_rate(cluster, group.in_node)
    network = network_rate(cluster, group.sharing)
    crossing = where(group.in_node > 1, minimum(link, network), network)
    return where(group.inside, link, crossing)


def _ring_latency(cluster: Cluster, group: Group, rounds: int) -> Floats:
    """Seconds of a ring's hops and of its start."""
    start = constant("communication.start_seconds")
    share = rounds * (group.members - 1) / maximum(group.members, 1)
    intra, inter = constant("communication.intra_hop_seconds"), constant("communication.inter_hop_seconds")
    edges = where(group.inside, 0, group.nodes)
    if not cluster.instance.efa or not anywhere(inverted(group.inside)):
        return start + share * ((group.members - edges) * intra + edges * inter)
    within = start + share * group.members * intra
    name = "gather" if rounds == 1 else "reduce"
    hops = (group.members - edges) * constant(f"communication.efa_{name}_hop_seconds") + edges * constant(
        "communication.efa_inter_hop_seconds"
    )
    return where(group.inside, within, maximum(within, share * delay(cluster) * hops))


def _ring_seconds(cluster: Cluster, bytes_: Floats, group: Group, rounds: int) -> Floats:
    share = rounds * (group.members - 1) / maximum(group.members, 1)
    return _ring_latency(cluster, group, rounds) + quotient(share * bytes_, _ring_rate(cluster, group))


def _tree_seconds(cluster: Cluster, bytes_: Floats, group: Group) -> Floats:
    """Seconds of an all-reduce along a tree of nodes, which is a pair of them for two.

    Between two nodes, every byte crosses the network once in each direction. In larger trees, a node also forwards the
    bytes of other nodes.
    """
    if cluster.instance.efa:
        small, large = (constant(f"communication.efa_tree_hop_{size}_seconds") for size in ("small", "large"))
        hop = delay(cluster) * (small + (large - small) * bytes_ / (bytes_ + _SMALL_MESSAGE_BYTES))
    else:
        intra = constant("communication.intra_hop_seconds")
        hop = constant("communication.inter_hop_seconds") + group.in_node * intra
        hop = hop + constant("communication.start_seconds") / 2
    levels = binary_logarithm(maximum(group.nodes, 2))
    traffic = where(group.nodes > 2, 2 * constant("communication.tree_traffic"), 1.0)
    across = quotient(traffic * bytes_, network_rate(cluster, group.sharing))
    around = 2 * (group.in_node - 1) / group.in_node * bytes_
    # Nodes with a single GPU have no links of their own.
    within = where(group.in_node > 1, quotient(around, intra_rate(cluster, group.in_node)), 0.0)
    return 2 * levels * hop + maximum(across, within)


def all_reduce_seconds(cluster: Cluster, bytes_: Floats, members: Floats, stride: Floats) -> Floats:
    """All-reduce of `bytes_` per GPU.

    In a ring 2 (n - 1) / n of them cross each link (Patarasuk and Yuan 2009). Across nodes NCCL chooses between rings
    and trees (Jeaugey 2019, "Massively scale your deep learning training with NCCL 2.4"), which take fewer hops.
    """
    group = Group.of(cluster, members, stride)
    time = _ring_seconds(cluster, bytes_, group, rounds=2)
    if anywhere(inverted(group.inside)):
        time = where(group.inside, time, minimum(time, _tree_seconds(cluster, bytes_, group)))
    return where((members > 1) & (bytes_ > 0), time, 0.0)


def all_gather_seconds(cluster: Cluster, bytes_: Floats, members: Floats, stride: Floats) -> Floats:
    """Ring all-gather whose full size is `bytes_`: (n - 1) / n of them cross each link."""
    group = Group.of(cluster, members, stride)
    unmeasured = True if is_first_generation(cluster) else members > MOST_MEASURED
    time = _ring_seconds(cluster, bytes_, group, rounds=1) * _doubt(cluster, group, unmeasured)
    return where((members > 1) & (bytes_ > 0), time, 0.0)


def reduce_scatter_seconds(cluster: Cluster, bytes_: Floats, members: Floats, stride: Floats) -> Floats:
    """Ring reduce-scatter whose full size is `bytes_`, with the volume of an all-gather."""
    group = Group.of(cluster, members, stride)
    time = _ring_seconds(cluster, bytes_, group, rounds=1) * _doubt(cluster, group, unmeasured=True)
    return where((members > 1) & (bytes_ > 0), time, 0.0)


def _doubt(cluster: Cluster, group: Group, unmeasured: Bools) -> Floats:
    """Factor of the time of a collective across nodes that was not measured over EFA."""
    if not cluster.instance.efa:
        return 1.0
    factor = constant("communication.efa_unmeasured_factor")
    return where(unmeasured & inverted(group.inside), factor, 1.0)


def sharded_gather_seconds(
    cluster: Cluster, bytes_: Floats, members: Floats, stride: Floats, *, two_level: Bools, overlapped: Bools
) -> Floats:
    """All-gather of the parameters of a sharding group whose full size is `bytes_`.

    Parameters
    ----------
    two_level
        Whether rings between nodes, one for each GPU of a node, gather a part on each GPU, and rings inside the nodes
        then exchange the parts (Zhang et al. 2022, arXiv 2205.00119, section 3.3).
    overlapped
        Whether both happen at the same time (SMDDP), which is an assumption: its collectives have no published curve.
    """
    ring = all_gather_seconds(cluster, bytes_, members, stride)
    levels = two_level | overlapped
    if not anywhere(levels):
        return ring
    group = Group.of(cluster, members, stride)
    between = all_gather_seconds(cluster, bytes_ / group.in_node, group.nodes, cluster.instance.gpus)
    within = all_gather_seconds(cluster, bytes_, group.in_node, stride)
    time = where(overlapped, maximum(between, within), between + within)
    return where(levels & inverted(group.inside) & (group.in_node > 1), time, ring)


def all_to_all_seconds(cluster: Cluster, bytes_: Floats, members: Floats, stride: Floats) -> Floats:
    """All-to-all: every GPU sends (n - 1) / n of its `bytes_` to its group, in smaller messages than a ring's.

    What leaves the node shares its network with what the node's other GPUs send.
    """
    group = Group.of(cluster, members, stride)
    time = _ring_seconds(cluster, bytes_ / constant("communication.all_to_all_share"), group, rounds=1)
    if anywhere(inverted(group.inside)):
        leaving = bytes_ * (members - group.in_node) / maximum(members, 1)
        start: Floats = constant("communication.start_seconds")
        if cluster.instance.efa:
            messages = constant("communication.efa_all_to_all_seconds") + members * constant(
                "communication.efa_all_to_all_peer_seconds"
            )
            start = maximum(start, delay(cluster) * messages)
        across = start + quotient(leaving, network_rate(cluster, 1) / cluster.instance.gpus)
        time = where(group.inside, time, across)
    return where((members > 1) & (bytes_ > 0), time, 0.0)


def point_to_point_seconds(cluster: Cluster, bytes_: Floats, line: Group) -> Floats:
    """Slowest transfer between adjacent stages of a pipeline.

    Where the pipeline leaves the node, all groups that share its network send together.
    """
    rate = where(line.inside, intra_rate(cluster, 2), network_rate(cluster, line.sharing))
    return constant("communication.start_seconds") + quotient(bytes_, rate)
