"""Time of one optimizer step on the critical path, part by part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from smp_advisor.costs.activations import offloaded_activation_bytes
from smp_advisor.costs.communication import (
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    bus_bytes_per_second,
    point_to_point_seconds,
)
from smp_advisor.costs.compute import block_seconds, head_seconds, memory_bandwidth, outside_seconds
from smp_advisor.costs.constants import constant
from smp_advisor.costs.partition import stage_kinds
from smp_advisor.costs.pipeline import makespan_slots
from smp_advisor.costs.state import local_parameters, owned_parameters, trained_parameters, vocabulary_shards

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.partition import Stage
    from smp_advisor.costs.state import LocalParameters
    from smp_advisor.costs.world import World
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.workload.block import Block
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

    Floats = NDArray[np.float64]

__all__ = ["step_seconds"]


@dataclass(frozen=True, kw_only=True)
class _Passes:
    """Seconds of one microbatch on one block or one stage, arrays of shape (n,)."""

    forward: Floats
    backward: Floats
    recomputation: Floats
    exchange_forward: Floats
    """Exposed communication inside the block: tensor, context and expert parallelism."""
    exchange_backward: Floats
    """The same for the backward pass and recomputation."""

    @property
    def total(self) -> Floats:
        """Total seconds of one microbatch."""
        return self.forward + self.backward + self.recomputation + self.exchange_forward + self.exchange_backward

    def row(self, index: NDArray[np.intp]) -> _Passes:
        """Selected rows."""
        return _Passes(**{name: getattr(self, name)[index] for name in _PASSES})


_PASSES = tuple(_Passes.__dataclass_fields__)


def _exchange_seconds(block: Block, cluster: Cluster, layout: Layout, world: World) -> Floats:
    """Seconds of communication in one forward pass of a block.

    Tensor parallelism: all-reduces of the block's output, or with sequence parallelism an all-gather and a
    reduce-scatter of the same volume. Context parallelism: an all-gather of keys and values. Expert parallelism: an
    all-to-all of the tokens to their experts and one back.
    """
    tokens = world.microbatch_tokens * world.bytes_per_element
    tp, cp, ep = layout.tensor_parallel_degree, layout.context_parallel_degree, layout.expert_parallel_degree
    seconds = block.all_reduces * all_reduce_seconds(cluster, block.hidden * tokens, tp, world.tensor_stride)
    if (cp > 1).any():
        keys = sum(2 * a.kv_heads * a.head_dim for a in block.attentions) / tp
        seconds = seconds + all_gather_seconds(cluster, keys * tokens * cp, cp, world.tensor_stride * tp)
    experts = max((m.weights_per_token for m in block.matmuls if m.experts > 1), default=0)
    if experts and (ep > 1).any():
        moved = block.hidden * tokens * experts / np.where(layout.sequence_parallel, tp, 1)
        seconds = seconds + 2 * all_to_all_seconds(cluster, moved, ep, world.data_stride)
    return seconds


def _block_passes(block: Block, cluster: Cluster, job: Job, layout: Layout, world: World) -> _Passes:
    compute = block_seconds(block, layout, world, cluster.instance, job)
    exchange = _exchange_seconds(block, cluster, layout, world)
    full = layout.checkpoint_layers != 0
    core = np.where(layout.selective_recomputation & ~full, compute.core_attention, 0.0)
    return _Passes(
        forward=compute.forward,
        backward=compute.backward,
        recomputation=np.where(full, compute.forward / layout.checkpoint_period, core),
        exchange_forward=exchange,
        exchange_backward=exchange * np.where(full, 1 + 1 / layout.checkpoint_period, 1),
    )


def _stage_passes(
    model: Model, cluster: Cluster, job: Job, layout: Layout, world: World, degree: int
) -> tuple[_Passes, ...]:
    blocks = [_block_passes(g.block, cluster, job, layout, world) for g in model.groups]
    head = head_seconds(model, layout, world, cluster.instance, job, vocabulary_shards(model, layout))

    def of_stage(stage: Stage) -> _Passes:
        sums = {
            name: sum(
                (n * getattr(block, name) for n, block in zip(stage.block_counts, blocks, strict=True)),
                np.zeros(len(layout)),
            )
            for name in _PASSES
        }
        if stage.first and model.outside_flops:
            outside = outside_seconds(model, world, cluster.instance, job)
            sums["forward"] = sums["forward"] + outside
            sums["backward"] = sums["backward"] + 2 * outside
        if stage.last:
            sums["forward"] = sums["forward"] + head[0]
            sums["backward"] = sums["backward"] + head[1]
        return _Passes(**sums)

    return tuple(of_stage(stage) for stage in stage_kinds(model, degree))


def step_seconds(
    model: Model, cluster: Cluster, job: Job, layout: Layout, world: World, degree: int
) -> dict[str, Floats]:
    """Seconds of one optimizer step by part (the fields of `StepTime`), arrays of shape (n,).

    Parameters
    ----------
    degree
        The pipeline parallel degree that all n layouts share.
    """
    every = _stage_passes(model, cluster, job, layout, world, degree)
    slowest = np.stack([p.total for p in every]).argmax(axis=0)
    rows = np.arange(len(layout))
    passes = _Passes(**{name: np.stack([getattr(p, name) for p in every])[slowest, rows] for name in _PASSES})
    m = layout.microbatches
    result = {
        "forward_seconds": m * passes.forward,
        "backward_seconds": m * passes.backward,
        "recomputation_seconds": m * passes.recomputation,
        "tensor_parallel_seconds": m * (passes.exchange_forward + passes.exchange_backward),
    }
    local = _largest_local_parameters(model, layout, degree)
    result["pipeline_bubble_seconds"] = _bubble(model, cluster, layout, world, degree, passes.total)
    result["data_parallel_seconds"] = _data_parallel(model, cluster, layout, world, degree, local, passes)
    result["optimizer_seconds"] = _optimizer(cluster, layout, world, local) + constant("time.step_seconds")
    accumulation = m * _accumulation(cluster, layout, world, local)
    result["backward_seconds"] = result["backward_seconds"] + accumulation
    compute = m * (passes.forward + passes.backward + passes.recomputation)
    result["offload_seconds"] = _offload(model, cluster, layout, world, degree, compute) + _state_copies(
        cluster, layout, world, local, compute
    )
    nodes = np.log2(max(cluster.nodes, 1))
    return {name: values * (1 + constant("time.straggler_per_doubling") * nodes) for name, values in result.items()}


def _accumulation(cluster: Cluster, layout: Layout, world: World, local: LocalParameters) -> Floats:
    """Seconds to add a microbatch's gradients to the accumulated ones. Both are read, one is written."""
    state = layout.state_bytes
    trained = trained_parameters(local, layout).total
    accumulated = np.where(layout.shard_level >= 2, owned_parameters(local, layout, world), trained)
    moved = (state.compute_bytes + 2 * max(state.gradient_bytes, state.extra_gradient_bytes)) * accumulated
    seconds: Floats = constant("time.gradient_accumulation") * moved / memory_bandwidth(cluster.instance)
    return seconds


def _bubble(model: Model, cluster: Cluster, layout: Layout, world: World, degree: int, slot: Floats) -> Floats:
    """Seconds of idle slots (at the rate of the slowest stage) and of transfers between stages."""
    if degree == 1:
        return np.zeros(len(layout))
    spans = makespan_slots(layout)
    width = max(g.block.hidden * g.block.input_tensors for g in model.groups)
    # Every GPU of a tensor-parallel group has the same activations. Megatron and DeepSpeed send a part from each GPU;
    # the method of SMP v1 is not documented.
    parts = np.where(layout.host_handover, 1, layout.tensor_parallel_degree)
    hop = constant("communication.handover_seconds") + point_to_point_seconds(
        cluster,
        world.bytes_per_element * width * world.microbatch_tokens / parts,
        layout.pipeline_parallel_degree,
        world.pipeline_stride,
    )
    # Every microbatch is transferred once in each direction. A stage waits for transfers while the pipeline fills and
    # drains. Otherwise they overlap with compute and slow it down.
    waiting = spans - layout.microbatches
    steady = constant("time.contention_across_nodes") * layout.microbatches
    return waiting * slot + 2 * hop * layout.virtual_stages * (waiting + steady)


def _largest_local_parameters(model: Model, layout: Layout, degree: int) -> LocalParameters:
    locals_ = [local_parameters(model, layout, stage) for stage in stage_kinds(model, degree)]
    if len(layout) == 1:
        return max(locals_, key=lambda local: float(local.total[0]))
    largest = np.stack([local.total for local in locals_]).argmax(axis=0)
    rows = np.arange(len(layout))
    columns = {
        name: np.stack([np.broadcast_to(getattr(local, name), (len(layout),)) for local in locals_])[largest, rows]
        for name in locals_[0].__dataclass_fields__
    }
    return type(locals_[0])(**columns)


def _exposed(communication: Floats, compute: Floats, inside: NDArray[np.bool_]) -> Floats:
    """Seconds that communication adds to concurrent compute.

    These are the excess over compute and a share of the shorter of both. A collective inside a node uses memory
    bandwidth and multiprocessors at NVLink's rate; one that waits for the network uses far less.
    """
    share = np.where(inside, constant("time.contention_in_node"), constant("time.contention_across_nodes"))
    exposed: Floats = np.maximum(communication - compute, 0.0) + share * np.minimum(communication, compute)
    return exposed


def _sharded_seconds(cluster: Cluster, bytes_: Floats, world: World) -> Floats:
    """Seconds of a reduce-scatter or all-gather of all gradients or parameters, one bucket per message.

    A message passes the entire ring, so large groups wait for its hops rather than for its bytes.
    """
    messages = np.ceil(bytes_ / (constant("communication.bucket_mib") * 2**20))
    per_message = all_gather_seconds(cluster, bytes_ / np.maximum(messages, 1), world.shards, world.data_stride)
    seconds: Floats = messages * per_message
    return seconds


def _data_parallel(
    model: Model,
    cluster: Cluster,
    layout: Layout,
    world: World,
    degree: int,
    local: LocalParameters,
    passes: _Passes,
) -> Floats:
    """Seconds of reductions and all-gathers that compute does not hide.

    Without sharding, gradients are all-reduced during the last microbatch's backward pass. With sharded optimizer state
    they are reduce-scattered there, and the all-gather of updated parameters after the optimizer step is exposed (SMP
    documentation, Introduction to model parallelism). Sharded parameters are gathered, with prefetch, in the forward
    and again in the backward pass of every microbatch, where gradients are also reduce-scattered.
    """
    state = layout.state_bytes
    reduction, dp, stride = world.reduction_degree, world.data_parallel_degree, world.data_stride
    # The data-parallel group of replicated modules includes entire tensor-parallel groups. A node has one such group
    # per pipeline stage.
    tp = layout.tensor_parallel_degree
    wide = np.where(
        layout.spread_placement | layout.pipeline_outermost, 1, np.clip(world.gpus_per_node // tp, 1, degree)
    )
    trained = trained_parameters(local, layout)
    split = trained.split + trained.experts
    last = passes.backward + passes.recomputation

    level = layout.shard_level
    gradient_bytes = state.reduced_bytes * trained.total
    inside = bus_bytes_per_second(cluster, reduction, stride)[1]
    forward = passes.forward + passes.exchange_forward
    by_level = np.zeros(len(layout))
    # Each level is computed only if some plan has it.
    if (level == 0).any():
        reduced = all_reduce_seconds(cluster, state.reduced_bytes * split, reduction, stride) + all_reduce_seconds(
            cluster, state.reduced_bytes * trained.replicated, dp, wide
        )
        by_level = _exposed(reduced, last, inside)
    if ((level == 1) | (level == 2)).any():
        scattered = _sharded_seconds(cluster, gradient_bytes, world) + all_reduce_seconds(
            cluster, gradient_bytes / world.shards, reduction // world.shards, world.shards * stride
        )
        gathered = _sharded_seconds(cluster, state.compute_bytes * trained.total, world)
        waited = np.where(layout.gather_after_step, gathered, _exposed(gathered, forward, inside))
        by_level = np.where(level == 0, by_level, _exposed(scattered, last, inside) + waited)
    if not (level >= 3).any():
        return by_level

    # One all-gather per block: each has the start-up time of a collective.
    blocks = model.layer_count
    gather = blocks * all_gather_seconds(cluster, state.gathered_bytes * local.total / blocks, world.shards, tp)
    scatter = blocks * all_gather_seconds(cluster, gradient_bytes / blocks, world.shards, tp)
    across = all_reduce_seconds(
        cluster,
        gradient_bytes / world.shards,
        np.maximum(reduction // world.shards, 1),
        world.shards * tp,
    )
    backward = passes.backward + passes.recomputation + passes.exchange_backward
    sharing = bus_bytes_per_second(cluster, world.shards, tp)[1]
    per_microbatch = _exposed(gather, forward, sharing) + _exposed(gather + scatter, backward, sharing)
    # If the shards are within a node, only the reduction across nodes uses the network, concurrently with compute and
    # gathers. Otherwise, the part of the backward pass without gathers hides it.
    within = gather + scatter
    concurrent = np.maximum(across - np.maximum(within, last), 0.0) + constant(
        "time.contention_across_nodes"
    ) * np.minimum(across, last)
    after = _exposed(across, np.maximum(last - within, 0.0), np.zeros_like(sharing))
    fully = layout.microbatches * per_microbatch + np.where(sharing, concurrent, after)
    return np.where(level >= 3, fully, by_level)


def _optimizer(cluster: Cluster, layout: Layout, world: World, local: LocalParameters) -> Floats:
    """Seconds of the optimizer's update, which reads and writes every byte of the state on each GPU."""
    moved = constant("time.optimizer_passes") * layout.state_bytes.total_bytes * owned_parameters(local, layout, world)
    on_gpu = memory_bandwidth(cluster.instance)
    # All GPUs of a node share the host's memory.
    on_host = constant("offload.host_memory_gb_per_s") * 1e9 / cluster.instance.gpus
    seconds: Floats = moved / np.where(layout.offload_state, on_host, on_gpu)
    return seconds


def _state_copies(cluster: Cluster, layout: Layout, world: World, local: LocalParameters, compute: Floats) -> Floats:
    """Seconds of copies of state in host memory that compute does not hide.

    Every microbatch copies the shard of the parameters to the GPU twice, for the forward and the backward pass, and its
    gradients to the host.
    """
    if not layout.offload_state.any():
        return np.zeros(len(layout))
    state = layout.state_bytes
    moved = (2 * state.parameter_bytes + state.gradient_bytes) * owned_parameters(local, layout, world)
    seconds = layout.microbatches * moved / (cluster.instance.host_link_gb_per_s * 1e9)
    exposed: Floats = np.maximum(seconds - constant("time.overlap") * compute, 0.0)
    return np.where(layout.offload_state, exposed, 0.0)


def _offload(model: Model, cluster: Cluster, layout: Layout, world: World, degree: int, compute: Floats) -> Floats:
    """Seconds of copies of activations to the host and back that compute does not hide."""
    if not layout.offload_activations.any():
        return np.zeros(len(layout))
    moved = np.stack(
        [offloaded_activation_bytes(model, layout, world, stage) for stage in stage_kinds(model, degree)]
    ).max(axis=0)
    # Host memory has room for one round of microbatches in flight. Every microbatch of the step is copied through it.
    rounds = layout.microbatches / np.maximum(np.minimum(layout.active_microbatches, layout.microbatches), 1)
    seconds = 2 * moved * rounds / (cluster.instance.host_link_gb_per_s * 1e9)
    exposed: Floats = np.maximum(seconds - constant("time.overlap") * compute, 0.0)
    return exposed
