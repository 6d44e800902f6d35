"""Time of one optimizer step on the critical path, part by part, with the length of its pipeline in closed form."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from smp_advisor.core.elementwise import (
    anywhere,
    choose,
    inverted,
    largest,
    largest_index,
    maximum,
    minimum,
    root,
    where,
)
from smp_advisor.costs.activations import head_rows, offloaded_activation_bytes
from smp_advisor.costs.communication import Collectives, Group, data_parallel_seconds, point_to_point_seconds
from smp_advisor.costs.compute import Passes, optimizer_form, optimizer_host_seconds, stage_passes
from smp_advisor.costs.constants import constant, gpu_constant, memory_bandwidth
from smp_advisor.costs.world import (
    LocalParameters,
    World,
    local_parameters,
    owned_parameters,
    stack_of,
    stage_kinds,
    stage_runs,
    vocabulary_shards,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.core.elementwise import Floats, Ints
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model


def makespan_slots(layout: Layout) -> Floats:
    """Return the length of each plan's step in slots, for equal stages, shape (n,).

    A slot is one forward and one backward pass of a stage. ``active`` microbatches pass through the pipeline together,
    one slot apart, and the next ones start when the first returns. Virtual stages divide the time to fill the pipeline
    by their number (Narayanan et al. 2021, arXiv 2104.04473, section 2.2).
    """
    stages, microbatches = layout.pipeline_parallel_degree, layout.microbatches
    together = minimum(where(layout.simple_pipeline, microbatches, layout.active_microbatches), stages)
    rounds, remainder = divmod(microbatches - 1, maximum(together, 1))
    interleaved = rounds * stages + remainder + stages
    spans = where(layout.simple_pipeline, microbatches + stages - 1, interleaved)
    return microbatches + (spans - microbatches) / layout.virtual_stages


def makespan_seconds(
    layout: Layout, forward: Sequence[Floats], backward: Sequence[Floats], runs: Sequence[tuple[int, int]]
) -> Floats:
    """Return the length of each plan's step in seconds, shape (n,), with immediate transfers.

    Filling and draining the pipeline takes the sum over the stages, every other microbatch the slowest stage; exact for
    ``pipeline="simple"``, a flow shop of equal jobs. In the interleaved order the slowest stage waits only for the part
    of the others' time that its microbatches in flight do not fill: a lower bound of the simulated time, within a tenth
    as long as `active_microbatches` does not limit the pipeline.
    """
    microbatches = layout.microbatches
    both = [first + second for first, second in zip(forward, backward, strict=True)]
    total: Floats = sum((count * both[kind] for kind, count in runs), 0.0)
    slowest = largest(both)
    busy: Floats = microbatches * slowest
    if len(runs) == 1 and runs[0][1] == 1:
        return busy
    simple: Floats = total + (microbatches - 1) * (largest(forward) + largest(backward))
    if not anywhere(inverted(layout.simple_pipeline)):
        return simple
    stages = sum(count for _, count in runs)
    active = minimum(layout.active_microbatches, microbatches)
    span = busy
    before: Floats = 0.0
    position = 0
    for kind, count in runs:
        # The waiting time is a convex function of the position among equal stages: one of the ends has the most.
        for index in {0, count - 1}:
            head = before + index * both[kind]
            tail = total - head - both[kind]
            behind = minimum(active, stages - position - index) - 1
            first = maximum(tail - behind * forward[kind], 0.0)
            last = maximum(tail - behind * backward[kind], 0.0)
            # With all microbatches in flight, the wait for the first one to return is also that for the last one.
            wait = where(microbatches > behind + 1, first + last, maximum(first, last))
            span = maximum(span, head + microbatches * both[kind] + wait)
        before, position = before + count * both[kind], position + count
    together = minimum(maximum(layout.active_microbatches, 1), stages)
    rounds, remainder = divmod(microbatches - 1, together)
    limited = total + rounds * maximum(total, together * slowest) + remainder * slowest
    span = where(active < minimum(stages, microbatches), maximum(span, limited), span)
    span = where(layout.simple_pipeline, simple, span)
    seconds: Floats = busy + (span - busy) / layout.virtual_stages
    return seconds


def state_copy_seconds(
    cluster: Cluster, layout: Layout, world: World, local: LocalParameters, compute: Floats
) -> Floats:
    """Seconds of copies of host state that compute does not hide: parameters twice per microbatch, and gradients."""
    if not anywhere(layout.offload_state):
        return 0.0
    state = layout.state_bytes
    moved = (2 * state.parameter_bytes + state.gradient_bytes) * owned_parameters(local, layout, world)
    seconds = layout.microbatches * moved / (cluster.instance.host_link_gb_per_s * 1e9)
    exposed: Floats = maximum(seconds - constant("time.overlap") * compute, 0.0)
    return where(layout.offload_state, exposed, 0.0)


def activation_copy_seconds(
    model: Model, cluster: Cluster, layout: Layout, world: World, degree: int, compute: Floats
) -> Floats:
    """Return the seconds of copies of activations to the host and back that compute does not hide.

    The libraries' own offloading copies next to compute. PyTorch's ``offload_wrapper`` copies while the GPU waits
    (``save_on_cpu`` without its own stream), and what is saved outside the checkpointed blocks as well: the head's
    weight and two fp32 tensors of logits.
    """
    if not anywhere(layout.offload_activations):
        return 0.0
    moved = largest([offloaded_activation_bytes(model, layout, world, stage) for stage in stage_kinds(model, degree)])
    # Host memory has room for one round of microbatches in flight. Every microbatch of the step is copied through it.
    rounds = layout.microbatches / maximum(minimum(layout.active_microbatches, layout.microbatches), 1)
    link = cluster.instance.host_link_gb_per_s * 1e9
    seconds = 2 * moved * rounds / link
    exposed: Floats = maximum(seconds - constant("time.overlap") * compute, 0.0)
    if not anywhere(layout.blocking_offload):
        return exposed
    rows = head_rows(model, world)
    head = world.bytes_per_element * model.shape.hidden + 2 * 4 * rows
    copied = 2 * (moved * rounds + layout.microbatches * head * model.head.outputs / vocabulary_shards(model, layout))
    blocking = copied / minimum(link, constant("offload.blocking_gb_per_s") * 1e9)
    return where(layout.blocking_offload & layout.offload_activations, blocking, exposed)


_Columns = TypeVar("_Columns", Passes, LocalParameters)


class Step(NamedTuple):
    """Seconds of one optimizer step by part (the fields of `StepTime`), arrays of shape (n,)."""

    seconds: dict[str, Floats]
    of_host: dict[str, Floats]
    """Of the seconds of a part, those in which the GPU waits for the host. Passes are one part, ``passes``."""
    of_kernels: dict[str, Floats]
    """Seconds of kernels of attention and of products of weights, in all passes."""


PASSES = ("forward_seconds", "backward_seconds", "recomputation_seconds")


def step_of(model: Model, cluster: Cluster, job: Job, layout: Layout, world: World, degree: int) -> Step:
    """Return the time of n steps."""
    locals_ = [local_parameters(model, layout, stage) for stage in stage_kinds(model, degree)]
    every = stage_passes(model, cluster, job, layout, world, degree, locals_)
    slowest = _chosen(Passes, every, largest_index([p.total for p in every]))
    local = _chosen(LocalParameters, locals_, largest_index([p.total for p in locals_]))
    collectives = Collectives.of(model, cluster, layout, world, degree, local)
    m = layout.microbatches
    compute = m * (slowest.forward + slowest.backward + slowest.recomputation)
    stack = stack_of(job, layout)
    launches = optimizer_host_seconds(model, layout, cluster.instance, job, stack)
    update = _optimizer(cluster, layout, world, local, optimizer_form(job, stack))
    around = stack.step_share * constant("time.step_seconds")
    parts = {
        "forward_seconds": m * slowest.forward,
        "backward_seconds": m * (slowest.backward + slowest.accumulation),
        "recomputation_seconds": m * slowest.recomputation,
        "tensor_parallel_seconds": m * (slowest.exchange_forward + slowest.exchange_backward),
        "data_parallel_seconds": data_parallel_seconds(layout, slowest, collectives),
        "optimizer_seconds": maximum(update, launches) + around,
        "pipeline_bubble_seconds": _bubble(model, cluster, layout, world, degree, every),
    }
    offload = activation_copy_seconds(model, cluster, layout, world, degree, compute)
    offload = offload + state_copy_seconds(cluster, layout, world, local, compute)
    waiting = _host_floor(model, cluster, layout, sum(parts.values(), 0.0) + offload)
    slowest_node = 1 + constant("time.straggler_per_doubling") * math.log2(max(cluster.nodes, 1))
    result: dict[str, Floats] = {name: seconds * slowest_node for name, seconds in parts.items()}
    part = "pipeline_bubble_seconds" if degree > 1 else "data_parallel_seconds"
    waiting = waiting * slowest_node
    result[part] = result[part] + waiting
    result["offload_seconds"] = offload * slowest_node
    of_optimizer = where(launches > update, launches, 0.0) + around
    of_host: dict[str, Floats] = {
        "passes": m * slowest.of_host * slowest_node,
        "optimizer_seconds": of_optimizer * slowest_node,
    }
    of_kernels: dict[str, Floats] = {
        "attention": m * slowest.attention * slowest_node,
        "products": m * slowest.products * slowest_node,
    }
    return Step(result, of_host | {part: waiting}, of_kernels)


def _chosen(kind: type[_Columns], every: Sequence[_Columns], index: Ints) -> _Columns:
    if len(every) == 1:
        return every[0]
    return kind(
        **{name: choose(index, [getattr(values, name) for values in every]) for name in kind.__dataclass_fields__}
    )


def _host_floor(model: Model, cluster: Cluster, layout: Layout, seconds: Floats) -> Floats:
    """Seconds that a step waits for hosts that coordinate the passes of stages and the gathers of shards (SMP v1).

    Hosts and GPUs work side by side, so the longer of both decides. The step is the norm of order 4 of both: the work
    of the GPUs also counts below the floor, and twice the floor is exceeded by 2 %.
    """
    coordinated = layout.host_handover & ((layout.pipeline_parallel_degree > 1) | (layout.shard_level >= 3))
    if not anywhere(coordinated):
        return 0.0
    pace = gpu_constant("host_pace", cluster.instance.gpu)
    floor = pace * constant("time.host_floor_seconds") * math.sqrt(model.layer_count)
    squares = seconds * seconds, floor * floor
    together = root(root(squares[0] * squares[0] + squares[1] * squares[1]))
    return where(coordinated, together - seconds, 0.0)


def _bubble(
    model: Model, cluster: Cluster, layout: Layout, world: World, degree: int, every: Sequence[Passes]
) -> Floats:
    """Return the seconds in which the slowest stage has no work, and seconds of transfers between stages."""
    if degree == 1:
        return 0.0
    forward, backward = [passes.first_half for passes in every], [passes.second_half for passes in every]
    busy = layout.microbatches * largest([first + second for first, second in zip(forward, backward, strict=True)])
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
        group.inside, constant("communication.handover_in_node_seconds"), constant("communication.handover_seconds")
    )
    latency = where(layout.host_handover, constant("communication.host_handover_seconds"), by_nccl)
    seconds: Floats = latency + point_to_point_seconds(
        cluster, world.bytes_per_element * width * world.microbatch_tokens / parts, group
    )
    return seconds


def _optimizer(cluster: Cluster, layout: Layout, world: World, local: LocalParameters, form: str) -> Floats:
    """Seconds of the update, which reads and writes every byte of the state, if not fused for each operation."""
    passes = constant("time.optimizer_passes")
    if form != "fused":
        passes = passes * constant("time.optimizer_unfused")
    moved = passes * layout.state_bytes.total_bytes * owned_parameters(local, layout, world)
    on_gpu = memory_bandwidth(cluster.instance)
    # All GPUs of a node share the host's memory.
    on_host = constant("offload.host_memory_gb_per_s") * 1e9 / cluster.instance.gpus
    seconds: Floats = moved / where(layout.offload_state, on_host, on_gpu)
    return seconds
