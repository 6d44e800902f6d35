"""Time of collectives by topology (NVLink or PCIe inside the node, EFA between nodes), and what compute does not hide.

Across nodes the laws are those of measured NCCL collectives over EFA (`benchmarks/collectives.py` compares them with
every row). A ring passes each member once per round, so an all-gather is set by the shard that each member contributes:
the delay of a hop, plus the shard over the rate of the network. An all-reduce is a ring or a tree, whichever is faster.
No reduce-scatter was measured across nodes: it is counted as an all-gather.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from smp_advisor.core.elementwise import (
    anywhere,
    binary_logarithm,
    ceil,
    interpolated,
    inverted,
    maximum,
    minimum,
    quotient,
    where,
)
from smp_advisor.costs.constants import constant, gpu_constant
from smp_advisor.costs.world import trained_parameters

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.core.elementwise import Bools, Floats
    from smp_advisor.costs.compute import Passes
    from smp_advisor.costs.world import LocalParameters, World
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.workload.model import Model


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
        """Placement of a group with `stride` ranks between members; its interleaved groups share the network."""
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
    """Return whether the nodes have EFA devices of the first generation, on which no all-gather was measured."""
    return cluster.instance.efa and cluster.instance.inter_node_gbps <= _FIRST_GENERATION_GBPS


def delay(cluster: Cluster) -> Floats:
    """Latency of the node's EFA devices relative to those of p5."""
    return constant("communication.efa_first_generation_delay") if is_first_generation(cluster) else 1.0


def intra_rate(cluster: Cluster, members: Floats) -> Floats:
    """Return the bytes per second of a ring of `members` GPUs in one node, per GPU and direction."""
    link, efficiency = cluster.instance.intra_node.lower(), constant("communication.nvswitch_efficiency")
    if "nvlink" not in link:
        efficiency = gpu_constant("pcie_efficiency", cluster.instance.gpu)
    elif "cube mesh" in link:
        # A small group of a cube mesh uses few of the links.
        points = [float(constant(f"communication.cube_mesh_efficiency_{n}")) for n in (2, 4, 8)]
        efficiency = interpolated(members, (2, 4, 8), points)
    return cluster.intra_node_bytes_per_s * efficiency


def network_rate(cluster: Cluster, sharing: Floats) -> Floats:
    """Return the bytes per second of one of `sharing` groups that use a node's network, and slow each other down."""
    measured = cluster.instance.efa and cluster.instance.gpudirect_rdma
    name = "communication.efa_efficiency" if measured else "communication.network_efficiency"
    share = constant(name) * where(sharing > 1, constant("communication.shared_network_share"), 1.0)
    rate: Floats = cluster.inter_node_bytes_per_s_per_node * share / sharing
    return rate


_SMALL_MESSAGE_BYTES = 8 * 2**20
"""Size at which a hop of a tree takes the mean of its time for the smallest and for very large messages."""


def ring_rate(cluster: Cluster, group: Group) -> Floats:
    """Ring bandwidth of one of many equal groups that run together."""
    link = intra_rate(cluster, group.in_node)
    network = network_rate(cluster, group.sharing)
    crossing = where(group.in_node > 1, minimum(link, network), network)
    return where(group.inside, link, crossing)


def _ring_latency(cluster: Cluster, group: Group, rounds: int) -> Floats:
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
    return _ring_latency(cluster, group, rounds) + quotient(share * bytes_, ring_rate(cluster, group))


def _tree_seconds(cluster: Cluster, bytes_: Floats, group: Group) -> Floats:
    """Return the seconds of an all-reduce along a tree of nodes, which is a pair of them for two.

    Between two nodes with EFA, every byte crosses the network once in each direction. In larger trees, a node also
    forwards the bytes of other nodes. Without EFA, no pair of nodes was measured to be faster than a ring: 16 V100 with
    one 100 Gb/s adapter per node reduce 1.1 GB in 0.18 s, as 32 do (DLPerf, Megatron-LM).
    """
    if cluster.instance.efa:
        small, large = (constant(f"communication.efa_tree_hop_{size}_seconds") for size in ("small", "large"))
        hop = delay(cluster) * (small + (large - small) * bytes_ / (bytes_ + _SMALL_MESSAGE_BYTES))
    else:
        intra = constant("communication.intra_hop_seconds")
        hop = constant("communication.inter_hop_seconds") + group.in_node * intra
        hop = hop + constant("communication.start_seconds") / 2
    levels = binary_logarithm(maximum(group.nodes, 2))
    forwards = (group.nodes > 2) | (not cluster.instance.efa)
    traffic = where(forwards, 2 * constant("communication.tree_traffic"), 1.0)
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


def all_gather_seconds(
    cluster: Cluster, bytes_: Floats, members: Floats, stride: Floats, *, is_measured: bool = True
) -> Floats:
    """Ring all-gather whose full size is `bytes_`: (n - 1) / n of them cross each link."""
    group = Group.of(cluster, members, stride)
    time = _ring_seconds(cluster, bytes_, group, rounds=1)
    if cluster.instance.efa:
        unmeasured = True if is_first_generation(cluster) or not is_measured else members > MOST_MEASURED
        factor = constant("communication.efa_unmeasured_factor")
        time = time * where(unmeasured & inverted(group.inside), factor, 1.0)
    return where((members > 1) & (bytes_ > 0), time, 0.0)


def reduce_scatter_seconds(cluster: Cluster, bytes_: Floats, members: Floats, stride: Floats) -> Floats:
    """Ring reduce-scatter whose full size is `bytes_`, with the volume of an all-gather. None was measured."""
    return all_gather_seconds(cluster, bytes_, members, stride, is_measured=False)


def sharded_gather_seconds(
    cluster: Cluster, bytes_: Floats, members: Floats, stride: Floats, *, two_level: Bools, overlapped: Bools
) -> Floats:
    """All-gather of the parameters of a sharding group whose full size is `bytes_`.

    On two levels, rings between nodes, one for each GPU of a node, gather a part on each GPU, and rings inside the
    nodes then exchange the parts (Zhang et al. 2022, arXiv 2205.00119, section 3.3). That both overlap in SMDDP is an
    assumption: its collectives have no published curve.
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


_PAIRED_IN_CUBE_MESH = 4
"""Most GPUs of a cube mesh with a link between every two."""


def all_to_all_seconds(cluster: Cluster, bytes_: Floats, members: Floats, stride: Floats) -> Floats:
    """All-to-all: every GPU sends (n - 1) / n of its `bytes_` to its group.

    Inside a node it has a longer start than a ring, and about its rate, except where links do not connect all pairs.
    What leaves the node shares its network with what the node's other GPUs send.
    """
    group = Group.of(cluster, members, stride)
    share: Floats = gpu_constant("all_to_all_share", cluster.instance.gpu)
    if "cube mesh" in cluster.instance.intra_node.lower():
        share = where(group.in_node > _PAIRED_IN_CUBE_MESH, constant("communication.cube_mesh_all_to_all_8"), share)
    sent = quotient(bytes_ * (members - 1) / maximum(members, 1), intra_rate(cluster, group.in_node) * share)
    time: Floats = constant("communication.all_to_all_start_seconds") + sent
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
    """Slowest transfer between adjacent stages; all groups that share a node's network send together."""
    rate = where(line.inside, intra_rate(cluster, 2), network_rate(cluster, line.sharing))
    return constant("communication.start_seconds") + quotient(bytes_, rate)


def _exposed(communication: Floats, compute: Floats, inside: Bools) -> Floats:
    """Seconds that communication adds to concurrent compute: the excess, and a share of the shorter of both."""
    share = where(inside, constant("time.contention_in_node"), constant("time.contention_across_nodes"))
    exposed: Floats = maximum(communication - compute, 0.0) + share * minimum(communication, compute)
    return exposed


def _sharded_seconds(collective: Callable[..., Floats], cluster: Cluster, bytes_: Floats, world: World) -> Floats:
    """Seconds of a reduce-scatter or all-gather of everything, one bucket per message around the entire ring."""
    messages = ceil(bytes_ / (constant("communication.bucket_mib") * 2**20))
    per_message = collective(cluster, bytes_ / maximum(messages, 1), world.shards, world.data_stride)
    seconds: Floats = messages * per_message
    return seconds


GROUPED = (
    "tensor_parallel_degree", "expert_parallel_degree", "shard_level", "shard_degree", "two_level_gather",
    "overlapped_gather", "pipeline_outermost", "spread_placement",
)  # fmt: skip
"""Columns that decide the collectives of a step, next to the pipeline degree."""


class Collectives(NamedTuple):
    """Seconds of the collectives of data parallelism in one step, without what hides them, shape (n,)."""

    reduced: Floats
    """Reductions of gradients, with the replicas of shards at levels 1 and 2; at level 3 of one pass, without them."""
    gathered: Floats
    """All-gathers of parameters, at level 3 in one pass."""
    across: Floats
    """Level 3: all-reduces between the replicas of the shards."""
    inside: Bools
    """Whether the GPUs that reduce are within a node."""
    sharing: Bools
    """Whether the GPUs of a shard group are within a node."""

    @classmethod
    def of(
        cls, model: Model, cluster: Cluster, layout: Layout, world: World, degree: int, local: LocalParameters
    ) -> Collectives:
        """Return the collectives of n layouts. Each level is computed only if some plan has it."""
        state, level = layout.state_bytes, layout.shard_level
        reduction, stride, tp = world.reduction_degree, world.data_stride, layout.tensor_parallel_degree
        trained = trained_parameters(local, layout)
        gradient_bytes = state.reduced_bytes * trained.total
        reduced: Floats = 0.0
        gathered: Floats = 0.0
        across: Floats = 0.0
        if anywhere(level == 0):
            # The data-parallel group of replicated modules includes entire tensor-parallel groups. A node has one such
            # group per pipeline stage.
            placed = layout.spread_placement | layout.pipeline_outermost
            wide = where(placed, 1, minimum(maximum(world.gpus_per_node // tp, 1), degree))
            split = state.reduced_bytes * (trained.split + trained.experts)
            replicated = state.reduced_bytes * trained.replicated
            reduced = all_reduce_seconds(cluster, split, reduction, stride)
            reduced = reduced + all_reduce_seconds(cluster, replicated, world.data_parallel_degree, wide)
        sharing = Group.of(cluster, world.shards, where(level >= 3, tp, stride)).inside
        if anywhere((level == 1) | (level == 2)):
            scattered = _sharded_seconds(reduce_scatter_seconds, cluster, gradient_bytes, world)
            of_replicas = all_reduce_seconds(
                cluster, gradient_bytes / world.shards, reduction // world.shards, world.shards * stride
            )
            # Shards within a node: the replicas reduce a bucket over the network while NVLink scatters the next one.
            scattered = where(sharing, maximum(scattered, of_replicas), scattered + of_replicas)
            reduced = where(level == 0, reduced, scattered)
            gathered = _sharded_seconds(all_gather_seconds, cluster, state.compute_bytes * trained.total, world)
        if anywhere(level >= 3):
            # One all-gather per block: each has the start-up time of a collective.
            blocks = model.layer_count
            gather = blocks * sharded_gather_seconds(
                cluster,
                state.gathered_bytes * local.total / blocks,
                world.shards,
                tp,
                two_level=layout.two_level_gather,
                overlapped=layout.overlapped_gather,
            )
            scatter = blocks * reduce_scatter_seconds(cluster, gradient_bytes / blocks, world.shards, tp)
            across = all_reduce_seconds(
                cluster, gradient_bytes / world.shards, maximum(reduction // world.shards, 1), world.shards * tp
            )
            reduced, gathered = where(level >= 3, scatter, reduced), where(level >= 3, gather, gathered)
        return cls(reduced, gathered, across, Group.of(cluster, reduction, stride).inside, sharing)


def data_parallel_seconds(layout: Layout, passes: Passes, collectives: Collectives) -> Floats:
    """Return the seconds of reductions and all-gathers that compute does not hide.

    Without sharding, gradients are all-reduced during the last microbatch's backward pass, or after it
    (`StateBytes.reduces_late`). With sharded optimizer state they are reduce-scattered there, and the all-gather of
    updated parameters after the optimizer step is exposed (SMP documentation, Introduction to model parallelism).
    Sharded parameters are gathered, with prefetch, in the forward and again in the backward pass of every microbatch,
    where gradients are also reduce-scattered: three times their volume. Strategies that keep parameters gathered until
    the backward pass (``shard_grad_op``) move twice their volume (Rajbhandari et al. 2020, arXiv 1910.02054, section 7;
    PyTorch documentation of ``ShardingStrategy``). Replicas of the shards (hybrid strategies) reduce their gradients
    after every reduce-scatter, with MiCS once per step (Zhang et al. 2022, arXiv 2205.00119, section 3.4).
    """
    state, level, m = layout.state_bytes, layout.shard_level, layout.microbatches
    reduced, gathered, across, inside, sharing = collectives
    last = passes.backward + passes.recomputation
    forward = passes.forward + passes.exchange_forward
    by_level = _exposed(reduced, 0.0 * last if state.reduces_late else last, inside)
    if anywhere((level == 1) | (level == 2)):
        waited = where(layout.gather_after_step, gathered, _exposed(gathered, forward, sharing))
        by_level = where(level == 0, by_level, by_level + waited)
    if not anywhere(level >= 3):
        return by_level
    backward = last + passes.exchange_backward
    regather = where(layout.keeps_gathered, 0.0, gathered)
    within = regather + reduced
    # Under no_sync, gradients are reduced in the last backward pass only.
    reductions = 1 if state.accumulates_unsharded else m
    every = m * _exposed(gathered, forward, sharing) + reductions * _exposed(within, backward, sharing)
    if state.accumulates_unsharded:
        every = every + (m - 1) * _exposed(regather, backward, sharing)
    # If the shards are within a node, only the reduction across nodes uses the network, concurrently with compute and
    # gathers. Otherwise, the part of the backward pass without gathers hides it.
    concurrent = maximum(across - maximum(within, last), 0.0) + constant("time.contention_across_nodes") * minimum(
        across, last
    )
    after = _exposed(across, maximum(last - within, 0.0), inside=False)
    fully = every + where(layout.replicas_reduced_once, 1, reductions) * where(sharing, concurrent, after)
    return where(level >= 3, fully, by_level)
