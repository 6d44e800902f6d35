"""Time of one microbatch on one pipeline stage: compute, and communication inside blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smp_advisor.costs.communication import all_gather_seconds, all_reduce_seconds, all_to_all_seconds
from smp_advisor.costs.compute import block_seconds, head_seconds, outside_seconds
from smp_advisor.costs.constants import constant
from smp_advisor.costs.partition import stage_kinds
from smp_advisor.costs.rates import memory_bandwidth
from smp_advisor.costs.state import owned_parameters, trained_parameters, vocabulary_shards
from smp_advisor.elementwise import anywhere, inverted, maximum, where

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.partition import Stage
    from smp_advisor.costs.state import LocalParameters
    from smp_advisor.costs.world import World
    from smp_advisor.elementwise import Floats
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.workload.block import Block
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model


__all__ = ["Passes", "stage_passes"]


@dataclass(frozen=True, kw_only=True)
class Passes:
    """Seconds of one microbatch on one block or one stage, arrays of shape (n,)."""

    forward: Floats
    backward: Floats
    recomputation: Floats
    exchange_forward: Floats
    """Exposed communication inside the block: tensor, context and expert parallelism."""
    exchange_backward: Floats
    """The same for the backward pass and recomputation."""
    accumulation: Floats
    """Addition of the microbatch's gradients to those of earlier ones. No communication overlaps with it."""

    @property
    def total(self) -> Floats:
        """Total seconds of one microbatch."""
        return self.first_half + self.second_half

    @property
    def first_half(self) -> Floats:
        """Seconds of the forward pass with its communication."""
        return self.forward + self.exchange_forward

    @property
    def second_half(self) -> Floats:
        """Seconds from the start of the backward pass, with recomputation, communication and accumulation."""
        return self.backward + self.recomputation + self.exchange_backward + self.accumulation


_OF_BLOCKS = ("forward", "backward", "recomputation", "exchange_forward", "exchange_backward")
"""Fields that are sums over the blocks of a stage."""


def _exchange_seconds(block: Block, cluster: Cluster, layout: Layout, world: World) -> tuple[Floats, Floats]:
    """Seconds of communication in one (forward, backward) pass of a block.

    Tensor parallelism: all-reduces of the block's output, or with sequence parallelism an all-gather and a
    reduce-scatter of the same volume. Context parallelism: an all-gather of keys and values; the backward pass also
    returns their gradients (Liu et al. 2023, arXiv 2310.01889, section 3). Expert parallelism: an all-to-all of the
    tokens to their experts and one back.
    """
    tokens = world.microbatch_tokens * world.bytes_per_element
    tp, cp, ep = layout.tensor_parallel_degree, layout.context_parallel_degree, layout.expert_parallel_degree
    seconds = block.all_reduces * all_reduce_seconds(cluster, block.hidden * tokens, tp, world.tensor_stride)
    gradients: Floats = 0.0
    if anywhere(cp > 1):
        keys = sum(2 * a.kv_heads * a.head_dim for a in block.attentions) / tp
        gradients = all_gather_seconds(cluster, keys * tokens * cp, cp, world.tensor_stride * tp)
        seconds = seconds + gradients
    experts = max((m.weights_per_token for m in block.matmuls if m.experts > 1), default=0)
    if experts and anywhere(ep > 1):
        moved = block.hidden * tokens * experts / where(layout.sequence_parallel, tp, 1)
        seconds = seconds + 2 * all_to_all_seconds(cluster, moved, ep, world.data_stride)
    return seconds, seconds + gradients


def _block_passes(block: Block, cluster: Cluster, job: Job, layout: Layout, world: World) -> Passes:
    compute = block_seconds(block, layout, world, cluster.instance, job)
    forward_exchange, backward_exchange = _exchange_seconds(block, cluster, layout, world)
    full = layout.checkpoint_layers != 0
    # Collectives hide below the launches of a block that waits for the host.
    first = maximum(forward_exchange - compute.idle_forward, 0.0)
    second = maximum(backward_exchange - compute.idle_backward, 0.0)
    core = where(layout.selective_recomputation & inverted(full), compute.core_attention, 0.0)
    # Stored outputs: those of attention, and of half of the matrix products.
    repeated = where(
        layout.keeps_products,
        (compute.forward - compute.core_attention) / 2,
        compute.forward / layout.checkpoint_period,
    )
    return Passes(
        forward=compute.forward,
        backward=compute.backward,
        recomputation=where(full, repeated, core),
        exchange_forward=first,
        exchange_backward=second + where(full, first / layout.checkpoint_period, 0.0),
        accumulation=0.0,
    )


def stage_passes(
    model: Model,
    cluster: Cluster,
    job: Job,
    layout: Layout,
    world: World,
    degree: int,
    locals_: Sequence[LocalParameters],
) -> tuple[Passes, ...]:
    """Seconds of one microbatch on each kind of stage.

    Parameters
    ----------
    degree
        The pipeline parallel degree that all n layouts share.
    locals_
        Parameters on one GPU of each kind of stage (`stage_kinds`).
    """
    blocks = [_block_passes(g.block, cluster, job, layout, world) for g in model.groups]
    head = head_seconds(model, layout, world, cluster.instance, job, vocabulary_shards(model, layout))

    def of_stage(stage: Stage, local: LocalParameters) -> Passes:
        sums: dict[str, Floats] = dict.fromkeys(_OF_BLOCKS, 0.0)
        for count, block in zip(stage.block_counts, blocks, strict=True):
            if count:
                for name in _OF_BLOCKS:
                    sums[name] = sums[name] + count * getattr(block, name)
        if stage.first and model.outside_flops:
            outside = outside_seconds(model, world, cluster.instance, job)
            sums["forward"] = sums["forward"] + outside
            sums["backward"] = sums["backward"] + 2 * outside
        if stage.last:
            sums["forward"] = sums["forward"] + head[0]
            sums["backward"] = sums["backward"] + head[1]
        return Passes(**sums, accumulation=_accumulation(cluster, layout, world, local))

    kinds = stage_kinds(model, degree)
    return tuple(of_stage(stage, local) for stage, local in zip(kinds, locals_, strict=True))


def _accumulation(cluster: Cluster, layout: Layout, world: World, local: LocalParameters) -> Floats:
    """Seconds to add a microbatch's gradients to the accumulated ones. Both are read, one is written."""
    state = layout.state_bytes
    trained = trained_parameters(local, layout).total
    accumulated = where(layout.shard_level >= 2, owned_parameters(local, layout, world), trained)
    moved = (state.compute_bytes + 2 * max(state.gradient_bytes, state.extra_gradient_bytes)) * accumulated
    seconds: Floats = constant("time.gradient_accumulation") * moved / memory_bandwidth(cluster.instance)
    return seconds
