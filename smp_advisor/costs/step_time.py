"""Time of one optimizer step, part by part, on the critical path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from smp_advisor.costs.communication import all_gather_seconds, all_reduce_seconds, point_to_point_seconds
from smp_advisor.costs.compute import block_forward_seconds, head_forward_seconds
from smp_advisor.costs.constants import constant
from smp_advisor.costs.memory import host_bytes, local_parameters, vocabulary_shards
from smp_advisor.costs.partition import stage_kinds
from smp_advisor.costs.pipeline import makespan_slots

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.layout import Layout
    from smp_advisor.costs.world import World
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

    Floats = NDArray[np.float64]

__all__ = ["step_seconds"]


@dataclass(frozen=True, kw_only=True)
class _StagePass:
    """One microbatch on one stage: compute and tensor-parallel communication of each pass, arrays of shape (n,)."""

    forward: Floats
    head: Floats
    """Head and loss, part of neither recomputation."""
    tensor_parallel_forward: Floats

    def passes(self, recompute: NDArray[np.bool_]) -> Floats:
        """Forward, recomputation and backward (twice the forward) with their communication."""
        again = np.where(recompute, 1.0, 0.0)
        total: Floats = (3 + again) * self.forward + 3 * self.head + (2 + again) * self.tensor_parallel_forward
        return total


def _stage_passes(
    model: Model, cluster: Cluster, job: Job, layout: Layout, world: World, degree: int
) -> tuple[_StagePass, ...]:
    instance = cluster.instance
    compute = [block_forward_seconds(g.block, layout, world, instance, job) for g in model.groups]
    reductions = [
        g.block.all_reduces
        * all_reduce_seconds(
            cluster,
            world.bytes_per_element * g.block.hidden * world.microbatch_tokens,
            layout.tensor_parallel_degree,
            world.tensor_stride,
        )
        for g in model.groups
    ]
    head = head_forward_seconds(model, layout, world, instance, job, vocabulary_shards(model, layout))
    nothing = np.zeros(len(layout))
    return tuple(
        _StagePass(
            forward=sum((n * c for n, c in zip(stage.block_counts, compute, strict=True)), nothing),
            head=head if stage.last else nothing,
            tensor_parallel_forward=sum((n * r for n, r in zip(stage.block_counts, reductions, strict=True)), nothing),
        )
        for stage in stage_kinds(model, degree)
    )


def step_seconds(
    model: Model, cluster: Cluster, job: Job, layout: Layout, world: World, degree: int
) -> dict[str, Floats]:
    """Seconds of one optimizer step by part (the fields of `StepTime`), arrays of shape (n,).

    Parameters
    ----------
    degree
        The pipeline parallel degree that all n layouts share.
    """
    recompute = layout.checkpoint_layers != 0
    passes = _stage_passes(model, cluster, job, layout, world, degree)
    durations = np.stack([p.passes(recompute) for p in passes])
    slowest = durations.argmax(axis=0)

    def of_slowest(name: str) -> Floats:
        values: Floats = np.stack([getattr(p, name) for p in passes])
        picked: Floats = values[slowest, np.arange(len(layout))]
        return picked

    forward, head, reduce = of_slowest("forward"), of_slowest("head"), of_slowest("tensor_parallel_forward")
    again = np.where(recompute, 1.0, 0.0)
    m = layout.microbatches
    result = {
        "forward_seconds": m * (forward + head),
        "backward_seconds": 2 * m * (forward + head),
        "recomputation_seconds": m * again * forward,
        "tensor_parallel_seconds": m * (2 + again) * reduce,
    }
    slot = durations[slowest, np.arange(len(layout))]
    result["pipeline_bubble_seconds"] = _bubble(model, cluster, layout, world, degree, slot)
    result["data_parallel_seconds"] = _data_parallel(
        model, cluster, layout, world, degree, forward + head, again * forward
    )
    result["optimizer_seconds"] = _optimizer(model, cluster, job, layout, world, degree)
    result["offload_seconds"] = _offload(model, cluster, layout, world, degree, m * (3 + again) * forward)
    return result


def _bubble(
    model: Model,
    cluster: Cluster,
    layout: Layout,
    world: World,
    degree: int,
    slot: Floats,
) -> Floats:
    """Waiting and hand-overs: the simulated schedule's slots beyond the microbatches, at the slowest stage's pace."""
    if degree == 1:
        return np.zeros(len(layout))
    spans = makespan_slots(layout)
    width = max(g.block.hidden * g.block.input_tensors for g in model.groups)
    hop = point_to_point_seconds(
        cluster,
        world.bytes_per_element * width * world.microbatch_tokens,
        layout.pipeline_parallel_degree,
        world.pipeline_stride,
    )
    # Every microbatch hands over once in each direction; the sender's compute stream waits for its copy.
    return (spans - layout.microbatches) * slot + 2 * hop * spans


def _largest_local_parameters(model: Model, layout: Layout, degree: int) -> tuple[Floats, Floats]:
    pairs = [local_parameters(model, layout, stage) for stage in stage_kinds(model, degree)]
    split, replicated = np.stack([s for s, _ in pairs]), np.stack([r for _, r in pairs])
    rows = (split + replicated).argmax(axis=0), np.arange(len(layout))
    return split[rows], replicated[rows]


def _data_parallel(
    model: Model, cluster: Cluster, layout: Layout, world: World, degree: int, forward: Floats, recompute: Floats
) -> Floats:
    """Reductions and gathers that compute does not hide.

    Without sharding, gradients are all-reduced during the last microbatch's backward pass. With
    `shard_optimizer_state` they are reduce-scattered there, and the all-gather of updated parameters after the
    optimizer step is exposed (SMP documentation, Introduction to model parallelism). Sharded data parallelism gathers
    parameters in the forward and again in the backward pass of every microbatch and reduce-scatters gradients there,
    with prefetch.
    """
    element = world.bytes_per_element
    split, replicated = _largest_local_parameters(model, layout, degree)
    dp, rdp, stride = world.data_parallel_degree, world.replicas, world.data_stride
    # The data-parallel group of replicated modules takes in whole tensor-parallel groups; a node holds one such group
    # for each of its pipeline stages.
    wide = np.where(
        layout.spread_placement, 1, np.clip(world.gpus_per_node // layout.tensor_parallel_degree, 1, degree)
    )
    backward = 2 * forward + recompute
    hidden = constant("time.overlap") * backward

    reduce = all_reduce_seconds(cluster, element * split, rdp, stride) + all_reduce_seconds(
        cluster, element * replicated, dp, wide
    )
    scatter = all_gather_seconds(cluster, element * split, rdp, stride) + all_gather_seconds(
        cluster, element * replicated, dp, wide
    )
    plain = np.maximum(reduce - hidden, 0.1 * reduce)
    sharded_state = np.maximum(scatter - hidden, 0.1 * scatter) + scatter

    shards = layout.sharded_data_parallel_degree
    whole = element * (split + replicated)
    neighbours = layout.tensor_parallel_degree
    # One gather a block: every one of them pays the start of a collective.
    blocks = model.layer_count
    gather = blocks * all_gather_seconds(cluster, whole / blocks, shards, neighbours)
    across = all_reduce_seconds(cluster, whole / shards, np.maximum(rdp // shards, 1), shards * neighbours)
    overlap = constant("time.sharded_overlap")
    per_microbatch = np.maximum(gather - overlap * forward, 0) + np.maximum(2 * gather - overlap * backward, 0)
    sharded = layout.microbatches * per_microbatch + np.maximum(across - hidden, 0.1 * across)
    return np.where(shards > 1, sharded, np.where(layout.shard_optimizer_state, sharded_state, plain))


def _optimizer(model: Model, cluster: Cluster, job: Job, layout: Layout, world: World, degree: int) -> Floats:
    """Memory-bound update of the parameters each GPU owns."""
    split, replicated = _largest_local_parameters(model, layout, degree)
    whole = split + replicated
    owned = np.where(layout.shard_optimizer_state, whole / world.replicas, whole)
    share = 1.0 if job.optimizer == "adam" else 0.6
    traffic = share * constant("time.optimizer_bytes_per_parameter") * owned / layout.sharded_data_parallel_degree
    seconds: Floats = traffic / (cluster.instance.hbm_gb_per_s * 1e9 * constant("time.memory_efficiency"))
    return seconds


def _offload(model: Model, cluster: Cluster, layout: Layout, world: World, degree: int, compute: Floats) -> Floats:
    """Copies to the host and back that compute does not hide."""
    moved = np.stack([host_bytes(model, layout, world, stage) for stage in stage_kinds(model, degree)]).max(axis=0)
    # Host memory holds one round of microbatches in flight; every microbatch of the step passes through it.
    rounds = layout.microbatches / np.maximum(np.minimum(layout.active_microbatches, layout.microbatches), 1)
    seconds = 2 * moved * rounds / (cluster.instance.host_link_gb_per_s * 1e9)
    exposed: Floats = np.maximum(seconds - constant("time.overlap") * compute, 0.0)
    return exposed
