"""Time of data-parallel communication that compute does not hide: reductions of gradients, gathers of parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.costs.communication import (
    all_gather_seconds,
    all_reduce_seconds,
    reduce_scatter_seconds,
    sharded_gather_seconds,
)
from smp_advisor.costs.constants import constant
from smp_advisor.costs.links import Group
from smp_advisor.costs.state import trained_parameters
from smp_advisor.elementwise import anywhere, ceil, maximum, minimum, where

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.passes import Passes
    from smp_advisor.costs.state import LocalParameters
    from smp_advisor.costs.world import World
    from smp_advisor.elementwise import Bools, Floats
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.workload.model import Model


__all__ = ["data_parallel_seconds"]


def _exposed(communication: Floats, compute: Floats, inside: Bools) -> Floats:
    """Seconds that communication adds to concurrent compute.

    These are the excess over compute and a share of the shorter of both. A collective inside a node uses memory
    bandwidth and multiprocessors at NVLink's rate; one that waits for the network uses far less.
    """
    share = where(inside, constant("time.contention_in_node"), constant("time.contention_across_nodes"))
    exposed: Floats = maximum(communication - compute, 0.0) + share * minimum(communication, compute)
    return exposed


def _sharded_seconds(collective: Callable[..., Floats], cluster: Cluster, bytes_: Floats, world: World) -> Floats:
    """Seconds of a reduce-scatter or all-gather of all gradients or parameters, one bucket per message.

    A message passes the entire ring, so large groups wait for its hops rather than for its bytes.
    """
    messages = ceil(bytes_ / (constant("communication.bucket_mib") * 2**20))
    per_message = collective(cluster, bytes_ / maximum(messages, 1), world.shards, world.data_stride)
    seconds: Floats = messages * per_message
    return seconds


def data_parallel_seconds(
    model: Model,
    cluster: Cluster,
    layout: Layout,
    world: World,
    degree: int,
    local: LocalParameters,
    passes: Passes,
) -> Floats:
    """Seconds of reductions and all-gathers that compute does not hide.

    Without sharding, gradients are all-reduced during the last microbatch's backward pass. With sharded optimizer state
    they are reduce-scattered there, and the all-gather of updated parameters after the optimizer step is exposed (SMP
    documentation, Introduction to model parallelism). Sharded parameters are gathered, with prefetch, in the forward
    and again in the backward pass of every microbatch, where gradients are also reduce-scattered: three times their
    volume. Strategies that keep parameters gathered until the backward pass (``shard_grad_op``) move twice their volume
    (Rajbhandari et al. 2020, arXiv 1910.02054, section 7; PyTorch documentation of ``ShardingStrategy``). Replicas of
    the shards (hybrid strategies) reduce their gradients after every reduce-scatter, with MiCS once per step (Zhang et
    al. 2022, arXiv 2205.00119, section 3.4).
    """
    state = layout.state_bytes
    reduction, dp, stride = world.reduction_degree, world.data_parallel_degree, world.data_stride
    # The data-parallel group of replicated modules includes entire tensor-parallel groups. A node has one such group
    # per pipeline stage.
    tp = layout.tensor_parallel_degree
    wide = where(
        layout.spread_placement | layout.pipeline_outermost, 1, minimum(maximum(world.gpus_per_node // tp, 1), degree)
    )
    trained = trained_parameters(local, layout)
    split = trained.split + trained.experts
    last = passes.backward + passes.recomputation

    level = layout.shard_level
    gradient_bytes = state.reduced_bytes * trained.total
    inside = Group.of(cluster, reduction, stride).inside
    forward = passes.forward + passes.exchange_forward
    by_level: Floats = 0.0
    # Each level is computed only if some plan has it.
    if anywhere(level == 0):
        reduced: Floats = all_reduce_seconds(
            cluster, state.reduced_bytes * split, reduction, stride
        ) + all_reduce_seconds(cluster, state.reduced_bytes * trained.replicated, dp, wide)
        by_level = _exposed(reduced, last, inside)
    if anywhere((level == 1) | (level == 2)):
        scattered = _sharded_seconds(reduce_scatter_seconds, cluster, gradient_bytes, world)
        reduced = all_reduce_seconds(
            cluster, gradient_bytes / world.shards, reduction // world.shards, world.shards * stride
        )
        # Shards within a node: the replicas reduce a bucket over the network while NVLink scatters the next one.
        sharing = Group.of(cluster, world.shards, stride).inside
        scattered = where(sharing, maximum(scattered, reduced), scattered + reduced)
        gathered = _sharded_seconds(all_gather_seconds, cluster, state.compute_bytes * trained.total, world)
        waited = where(layout.gather_after_step, gathered, _exposed(gathered, forward, sharing))
        by_level = where(level == 0, by_level, _exposed(scattered, last, inside) + waited)
    if not anywhere(level >= 3):
        return by_level

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
        cluster,
        gradient_bytes / world.shards,
        maximum(reduction // world.shards, 1),
        world.shards * tp,
    )
    backward = passes.backward + passes.recomputation + passes.exchange_backward
    sharing = Group.of(cluster, world.shards, tp).inside
    regather = where(layout.keeps_gathered, 0.0, gather)
    within = regather + scatter
    # Under no_sync, gradients are reduced in the last backward pass only.
    m = layout.microbatches
    reductions = 1 if state.accumulates_unsharded else m
    every = m * _exposed(gather, forward, sharing) + reductions * _exposed(within, backward, sharing)
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
