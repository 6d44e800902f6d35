"""Time of one optimizer step, part by part, on the critical path."""

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
from smp_advisor.costs.compute import around_seconds, block_seconds, head_seconds
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
    """One microbatch through one block or one stage, arrays of shape (n,)."""

    forward: Floats
    backward: Floats
    recomputation: Floats
    exchange_forward: Floats
    """Communication inside the block that compute waits for: tensor, context and expert parallelism."""
    exchange_backward: Floats
    """That of the backward pass and of recomputation."""

    @property
    def total(self) -> Floats:
        """Everything one microbatch takes."""
        return self.forward + self.backward + self.recomputation + self.exchange_forward + self.exchange_backward

    def row(self, index: NDArray[np.intp]) -> _Passes:
        """Some rows."""
        return _Passes(**{name: getattr(self, name)[index] for name in _PASSES})


_PASSES = tuple(_Passes.__dataclass_fields__)


def _exchange_seconds(block: Block, cluster: Cluster, layout: Layout, world: World) -> Floats:
    """Communication of one forward pass of a block.

    Tensor parallelism: an all-reduce of the block's output each, or with sequence parallelism an all-gather and a
    reduce-scatter of the same volume. Context parallelism: keys and values go round the group. Expert parallelism:
    tokens go to their experts and back.
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
                (n * getattr(one, name) for n, one in zip(stage.block_counts, blocks, strict=True)),
                np.zeros(len(layout)),
            )
            for name in _PASSES
        }
        if stage.first and model.around_flops:
            around = around_seconds(model, world, cluster.instance, job)
            sums["forward"] = sums["forward"] + around
            sums["backward"] = sums["backward"] + 2 * around
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
    """Adding a microbatch's gradient of what is trained to the kept one: both are read, one is written."""
    recipe = layout.recipe
    whole = trained_parameters(local, layout).total
    kept = np.where(layout.shard_level >= 2, owned_parameters(local, layout, world), whole)
    moved = (recipe.compute_bytes + 2 * max(recipe.gradient_bytes, recipe.extra_gradient_bytes)) * kept
    seconds: Floats = (
        constant("time.gradient_accumulation")
        * moved
        / (cluster.instance.hbm_gb_per_s * 1e9 * constant("time.memory_efficiency"))
    )
    return seconds


def _bubble(model: Model, cluster: Cluster, layout: Layout, world: World, degree: int, slot: Floats) -> Floats:
    """Waiting and hand-overs: the schedule's slots beyond the microbatches, at the slowest stage's pace."""
    if degree == 1:
        return np.zeros(len(layout))
    spans = makespan_slots(layout)
    width = max(g.block.hidden * g.block.input_tensors for g in model.groups)
    # The whole tensor-parallel group holds the same activations: Megatron and DeepSpeed send a part from each GPU;
    # SMP v1 does not say.
    parts = np.where(layout.host_handover, 1, layout.tensor_parallel_degree)
    hop = constant("communication.handover_seconds") + point_to_point_seconds(
        cluster,
        world.bytes_per_element * width * world.microbatch_tokens / parts,
        layout.pipeline_parallel_degree,
        world.pipeline_stride,
    )
    # Every microbatch hands over once in each direction. While the pipeline fills and drains a stage waits for that; in
    # between there is other work, which a copy disturbs as any communication does.
    waiting = spans - layout.microbatches
    steady = constant("time.contention_across_nodes") * layout.microbatches
    return waiting * slot + 2 * hop * layout.virtual_stages * (waiting + steady)


def _largest_local_parameters(model: Model, layout: Layout, degree: int) -> LocalParameters:
    locals_ = [local_parameters(model, layout, stage) for stage in stage_kinds(model, degree)]
    if len(layout) == 1:
        return max(locals_, key=lambda local: float(local.total[0]))
    largest = np.stack([local.total for local in locals_]).argmax(axis=0)
    rows = np.arange(len(layout))
    return type(locals_[0])(
        **{
            name: np.stack([np.broadcast_to(getattr(local, name), (len(layout),)) for local in locals_])[largest, rows]
            for name in locals_[0].__dataclass_fields__
        }
    )


def _exposed(communication: Floats, compute: Floats, inside: NDArray[np.bool_]) -> Floats:
    """What a communication beside compute adds to the time.

    The excess over compute and, where both run, a share of the shorter: a collective inside a node takes memory
    bandwidth and multiprocessors from compute at NVLink's rate, one that waits for the network far less.
    """
    share = np.where(inside, constant("time.contention_in_node"), constant("time.contention_across_nodes"))
    exposed: Floats = np.maximum(communication - compute, 0.0) + share * np.minimum(communication, compute)
    return exposed


def _shared_out(cluster: Cluster, bytes_: Floats, world: World) -> Floats:
    """Reduce-scatter or all-gather of all gradients or parameters over their shards, in messages of a bucket.

    A message goes round the whole ring, so that large groups wait for its hops rather than for its bytes.
    """
    messages = np.ceil(bytes_ / (constant("communication.bucket_mib") * 2**20))
    one = all_gather_seconds(cluster, bytes_ / np.maximum(messages, 1), world.shards, world.data_stride)
    seconds: Floats = messages * one
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
    """Reductions and gathers that compute does not hide.

    Without sharding, gradients are all-reduced during the last microbatch's backward pass. With sharded optimizer state
    they are reduce-scattered there, and the all-gather of updated parameters after the optimizer step is exposed (SMP
    documentation, Introduction to model parallelism). Sharded parameters are gathered in the forward and again in the
    backward pass of every microbatch, and gradients reduce-scattered there, with prefetch.
    """
    recipe = layout.recipe
    reduction, dp, stride = world.reduction_degree, world.data_parallel_degree, world.data_stride
    # The data-parallel group of replicated modules takes in whole tensor-parallel groups; a node holds one such group
    # for each of its pipeline stages.
    tp = layout.tensor_parallel_degree
    wide = np.where(
        layout.spread_placement | layout.pipeline_outermost, 1, np.clip(world.gpus_per_node // tp, 1, degree)
    )
    trained = trained_parameters(local, layout)
    split = trained.split + trained.experts
    last = passes.backward + passes.recomputation

    level = layout.shard_level
    gradient_bytes = recipe.reduced_bytes * trained.total
    inside = bus_bytes_per_second(cluster, reduction, stride)[1]
    forward = passes.forward + passes.exchange_forward
    by_level = np.zeros(len(layout))
    # Each level is worked out only where a plan has it: one plan has one of them.
    if (level == 0).any():
        reduced = all_reduce_seconds(cluster, recipe.reduced_bytes * split, reduction, stride) + all_reduce_seconds(
            cluster, recipe.reduced_bytes * trained.replicated, dp, wide
        )
        by_level = _exposed(reduced, last, inside)
    if ((level == 1) | (level == 2)).any():
        scattered = _shared_out(cluster, gradient_bytes, world) + all_reduce_seconds(
            cluster, gradient_bytes / world.shards, reduction // world.shards, world.shards * stride
        )
        gathered = _shared_out(cluster, recipe.compute_bytes * trained.total, world)
        waited = np.where(layout.gather_after_step, gathered, _exposed(gathered, forward, inside))
        by_level = np.where(level == 0, by_level, _exposed(scattered, last, inside) + waited)
    if not (level >= 3).any():
        return by_level

    # One gather a block: every one of them pays the start of a collective.
    blocks, neighbours = model.layer_count, tp
    whole = local.total
    gather = blocks * all_gather_seconds(cluster, recipe.gathered_bytes * whole / blocks, world.shards, neighbours)
    scatter = blocks * all_gather_seconds(cluster, gradient_bytes / blocks, world.shards, neighbours)
    across = all_reduce_seconds(
        cluster,
        gradient_bytes / world.shards,
        np.maximum(reduction // world.shards, 1),
        world.shards * neighbours,
    )
    backward = passes.backward + passes.recomputation + passes.exchange_backward
    sharing = bus_bytes_per_second(cluster, world.shards, neighbours)[1]
    per_microbatch = _exposed(gather, forward, sharing) + _exposed(gather + scatter, backward, sharing)
    # Shards within a node leave the network to the reduction across them, which runs beside both compute and gathers;
    # where all use the network, what the gathers leave of the backward pass hides it.
    within = gather + scatter
    beside = np.maximum(across - np.maximum(within, last), 0.0) + constant("time.contention_across_nodes") * np.minimum(
        across, last
    )
    after = _exposed(across, np.maximum(last - within, 0.0), np.zeros_like(sharing))
    fully = layout.microbatches * per_microbatch + np.where(sharing, beside, after)
    return np.where(level >= 3, fully, by_level)


def _optimizer(cluster: Cluster, layout: Layout, world: World, local: LocalParameters) -> Floats:
    """Memory-bound update of the parameters each GPU owns: every byte of their state is read and written."""
    moved = constant("time.optimizer_passes") * layout.recipe.total_bytes * owned_parameters(local, layout, world)
    on_gpu = cluster.instance.hbm_gb_per_s * 1e9 * constant("time.memory_efficiency")
    # All GPUs of a node share the host's memory.
    on_host = constant("offload.host_memory_gb_per_s") * 1e9 / cluster.instance.gpus
    seconds: Floats = moved / np.where(layout.offload_state, on_host, on_gpu)
    return seconds


def _state_copies(cluster: Cluster, layout: Layout, world: World, local: LocalParameters, compute: Floats) -> Floats:
    """Copies of state that lives in host memory, as far as compute does not hide them.

    Every microbatch brings the shard of the parameters twice, for forward and backward pass, and takes its gradients
    back.
    """
    if not layout.offload_state.any():
        return np.zeros(len(layout))
    recipe = layout.recipe
    moved = (2 * recipe.parameter_bytes + recipe.gradient_bytes) * owned_parameters(local, layout, world)
    seconds = layout.microbatches * moved / (cluster.instance.host_link_gb_per_s * 1e9)
    exposed: Floats = np.maximum(seconds - constant("time.overlap") * compute, 0.0)
    return np.where(layout.offload_state, exposed, 0.0)


def _offload(model: Model, cluster: Cluster, layout: Layout, world: World, degree: int, compute: Floats) -> Floats:
    """Copies to the host and back that compute does not hide."""
    if not layout.offload_activations.any():
        return np.zeros(len(layout))
    moved = np.stack(
        [offloaded_activation_bytes(model, layout, world, stage) for stage in stage_kinds(model, degree)]
    ).max(axis=0)
    # Host memory holds one round of microbatches in flight; every microbatch of the step passes through it.
    rounds = layout.microbatches / np.maximum(np.minimum(layout.active_microbatches, layout.microbatches), 1)
    seconds = 2 * moved * rounds / (cluster.instance.host_link_gb_per_s * 1e9)
    exposed: Floats = np.maximum(seconds - constant("time.overlap") * compute, 0.0)
    return exposed
