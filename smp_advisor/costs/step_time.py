"""Time of one optimizer step on the critical path, part by part."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

from smp_advisor.costs.communication import point_to_point_seconds
from smp_advisor.costs.constants import constant
from smp_advisor.costs.data_parallel import data_parallel_seconds
from smp_advisor.costs.host import optimizer_host_seconds
from smp_advisor.costs.host_copies import activation_copy_seconds, state_copy_seconds
from smp_advisor.costs.links import Group
from smp_advisor.costs.makespan import makespan_seconds, makespan_slots
from smp_advisor.costs.partition import stage_kinds, stage_runs
from smp_advisor.costs.passes import Passes, stage_passes
from smp_advisor.costs.rates import memory_bandwidth
from smp_advisor.costs.stack import stack_of
from smp_advisor.costs.state import LocalParameters, local_parameters, owned_parameters
from smp_advisor.elementwise import anywhere, choose, largest, largest_index, maximum, power, root, where

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.world import World
    from smp_advisor.elementwise import Floats, Ints
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model


__all__ = ["handover_seconds", "step_seconds"]

_Columns = TypeVar("_Columns", Passes, LocalParameters)


def step_seconds(
    model: Model, cluster: Cluster, job: Job, layout: Layout, world: World, degree: int
) -> dict[str, Floats]:
    """Seconds of one optimizer step by part (the fields of `StepTime`), arrays of shape (n,).

    Parameters
    ----------
    degree
        The pipeline parallel degree that all n layouts share.
    """
    locals_ = [local_parameters(model, layout, stage) for stage in stage_kinds(model, degree)]
    every = stage_passes(model, cluster, job, layout, world, degree, locals_)
    slowest = _chosen(Passes, every, largest_index([p.total for p in every]))
    local = _chosen(LocalParameters, locals_, largest_index([p.total for p in locals_]))
    m = layout.microbatches
    compute = m * (slowest.forward + slowest.backward + slowest.recomputation)
    result = {
        "forward_seconds": m * slowest.forward,
        "backward_seconds": m * (slowest.backward + slowest.accumulation),
        "recomputation_seconds": m * slowest.recomputation,
        "tensor_parallel_seconds": m * (slowest.exchange_forward + slowest.exchange_backward),
        "pipeline_bubble_seconds": _bubble(model, cluster, layout, world, degree, every),
        "data_parallel_seconds": data_parallel_seconds(model, cluster, layout, world, degree, local, slowest),
        "optimizer_seconds": maximum(
            _optimizer(cluster, layout, world, local),
            optimizer_host_seconds(model, layout, cluster.instance, job, stack_of(job, layout)),
        )
        + where(layout.host_handover, constant("time.host_step_seconds"), constant("time.step_seconds")),
        "offload_seconds": activation_copy_seconds(model, cluster, layout, world, degree, compute)
        + state_copy_seconds(cluster, layout, world, local, compute),
    }
    waiting = _host_floor(layout, sum(result.values(), 0.0))
    part = "pipeline_bubble_seconds" if degree > 1 else "data_parallel_seconds"
    result[part] = result[part] + waiting
    nodes = math.log2(max(cluster.nodes, 1))
    return {name: values * (1 + constant("time.straggler_per_doubling") * nodes) for name, values in result.items()}


def _chosen(kind: type[_Columns], every: Sequence[_Columns], index: Ints) -> _Columns:
    """The values of the chosen stage of each plan."""
    if len(every) == 1:
        return every[0]
    return kind(
        **{name: choose(index, [getattr(values, name) for values in every]) for name in kind.__dataclass_fields__}
    )


def _host_floor(layout: Layout, seconds: Floats) -> Floats:
    """Seconds that a step waits for hosts that coordinate the passes of stages and the gathers of shards (SMP v1).

    Hosts and GPUs work side by side, so the longer of both decides. The step is the norm of order 4 of both: the work
    of the GPUs also counts below the floor, and twice the floor is exceeded by 2 %.
    """
    coordinated = layout.host_handover & ((layout.pipeline_parallel_degree > 1) | (layout.shard_level >= 3))
    if not anywhere(coordinated):
        return 0.0
    together = root(root(power(seconds, 4) + power(constant("time.host_floor_seconds"), 4)))
    return where(coordinated, together - seconds, 0.0)


def _bubble(
    model: Model, cluster: Cluster, layout: Layout, world: World, degree: int, every: Sequence[Passes]
) -> Floats:
    """Seconds in which the slowest stage has no work, and seconds of transfers between stages."""
    if degree == 1:
        return 0.0
    forward, backward = [p.first_half for p in every], [p.second_half for p in every]
    busy = layout.microbatches * largest([p.total for p in every])
    idle = makespan_seconds(layout, forward, backward, stage_runs(model, degree)) - busy
    hop = handover_seconds(model, cluster, layout, world)
    # Every microbatch is transferred once in each direction. A stage waits for transfers while the pipeline fills and
    # drains. Otherwise they overlap with compute and slow it down.
    waiting = makespan_slots(layout) - layout.microbatches
    steady = constant("time.contention_across_nodes") * layout.microbatches
    seconds: Floats = idle + 2 * hop * layout.virtual_stages * (waiting + steady)
    return seconds


def handover_seconds(model: Model, cluster: Cluster, layout: Layout, world: World) -> Floats:
    """Seconds of the transfer of one microbatch from a stage to the next, or of its gradients back, shape (n,)."""
    width = max(g.block.hidden * g.block.input_tensors for g in model.groups)
    # Every GPU of a tensor-parallel group has the same activations. Megatron and DeepSpeed send a part from each GPU;
    # the method of SMP v1 is not documented.
    parts = where(layout.host_handover, 1, layout.tensor_parallel_degree)
    group = Group.of(cluster, layout.pipeline_parallel_degree, world.pipeline_stride)
    by_nccl = where(
        group.inside,
        constant("communication.handover_in_node_seconds"),
        constant("communication.handover_seconds"),
    )
    latency = where(layout.host_handover, constant("communication.host_handover_seconds"), by_nccl)
    seconds: Floats = latency + point_to_point_seconds(
        cluster, world.bytes_per_element * width * world.microbatch_tokens / parts, group
    )
    return seconds


def _optimizer(cluster: Cluster, layout: Layout, world: World, local: LocalParameters) -> Floats:
    """Seconds of the optimizer's update, which reads and writes every byte of the state on each GPU."""
    moved = constant("time.optimizer_passes") * layout.state_bytes.total_bytes * owned_parameters(local, layout, world)
    on_gpu = memory_bandwidth(cluster.instance)
    # All GPUs of a node share the host's memory.
    on_host = constant("offload.host_memory_gb_per_s") * 1e9 / cluster.instance.gpus
    seconds: Floats = moved / where(layout.offload_state, on_host, on_gpu)
    return seconds
