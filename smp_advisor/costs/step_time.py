"""Time of one optimizer step on the critical path, part by part, with the length of its pipeline in closed form."""

from __future__ import annotations

import math
from functools import lru_cache
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
from smp_advisor.costs.communication import GROUPED, Collectives, Group, data_parallel_seconds, point_to_point_seconds
from smp_advisor.costs.compute import Passes, optimizer_form, optimizer_host_seconds, stage_passes
from smp_advisor.costs.constants import constant, gpu_constant, memory_bandwidth
from smp_advisor.costs.distinct import OFFLOADING, SCHEDULE, Distinct, distinct, distinct_memory, one
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
    from smp_advisor.costs.distinct import One
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
    model: Model, cluster: Cluster, job: Job, layout: Layout, degree: int, compute: Floats
) -> Floats:
    """Return the seconds of copies of activations to the host and back that compute does not hide.

    The libraries' own offloading copies next to compute. PyTorch's ``offload_wrapper`` copies while the GPU waits
    (``save_on_cpu`` without its own stream), and what is saved outside the checkpointed blocks as well: the head's
    weight and two fp32 tensors of logits.
    """
    if not anywhere(layout.offload_activations):
        return 0.0
    few = distinct_memory(model, layout, degree)
    of_few = World.of(model, cluster, job, few.layout)
    of_kinds = [offloaded_activation_bytes(model, few.layout, of_few, stage) for stage in stage_kinds(model, degree)]
    moved = few.all_rows(largest(of_kinds))
    # Host memory has room for one round of microbatches in flight. Every microbatch of the step is copied through it.
    rounds = layout.microbatches / maximum(minimum(layout.active_microbatches, layout.microbatches), 1)
    link = cluster.instance.host_link_gb_per_s * 1e9
    seconds = 2 * moved * rounds / link
    exposed: Floats = maximum(seconds - constant("time.overlap") * compute, 0.0)
    if not anywhere(layout.blocking_offload):
        return exposed
    world = World.of(model, cluster, job, layout)
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


class _Work(NamedTuple):
    """Parts of a step that do not depend on the order of its microbatches, shape (n,) each."""

    parts: dict[str, Floats]
    """Seconds by part, without those that the order decides."""
    compute: Floats
    """Seconds of a GPU's passes, next to which the host's copies run."""
    of_host: dict[str, Floats]
    of_kernels: dict[str, Floats]
    halves: list[tuple[Floats, Floats]]
    """Seconds of the (forward, backward) pass of one microbatch on each kind of stage."""


def _work(model: Model, cluster: Cluster, job: Job, layout: Layout, world: World, degree: int) -> _Work:
    # Passes read the schedule as the samples of a microbatch. On one GPU, the first microbatch accumulates nothing,
    # and with fp8, it alone casts weights.
    accumulated = layout.microbatches if world.gpus == 1 or job.fp8 else 1
    few = distinct(layout, [world.microbatch_samples, accumulated], but=(*SCHEDULE, *OFFLOADING))
    of_few = few.of_kinds(world)
    locals_ = [local_parameters(model, few.layout, stage) for stage in stage_kinds(model, degree)]
    every = stage_passes(model, cluster, job, few.layout, of_few, degree, locals_)
    slowest = few.all_rows(_chosen(Passes, every, largest_index([p.total for p in every])))
    most = _chosen(LocalParameters, locals_, largest_index([p.total for p in locals_]))
    local, grouped = few.all_rows(most), distinct(few.layout, (), only=GROUPED)
    collectives = Collectives.of(
        model, cluster, grouped.layout, grouped.of_kinds(of_few), degree, grouped.of_kinds(most)
    )
    collectives = few.all_rows(grouped.all_rows(collectives))
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
        "offload_seconds": state_copy_seconds(cluster, layout, world, local, compute),
    }
    return _Work(
        parts,
        compute,
        {"passes": m * slowest.of_host, "optimizer_seconds": where(launches > update, launches, 0.0) + around},
        {"attention": m * slowest.attention, "products": m * slowest.products},
        few.all_rows([(p.first_half, p.second_half) for p in every]),
    )


@lru_cache(maxsize=4096)
def _work_of_one(model: Model, cluster: Cluster, job: Job, one: One, degree: int) -> _Work:
    return _work(model, cluster, job, one.layout, one.world, degree)


def step_of(model: Model, cluster: Cluster, job: Job, layout: Layout, world: World | None, degree: int) -> Step:
    """Time of n steps; many plans need no `world`, and then the seconds of the host and of kernels are left out.

    Rows that differ in their copies to the host alone share the rest, and those that differ in the order of their
    microbatches alone share the work.
    """
    single = None if world is None else one(layout, world, [world.microbatch_samples, layout.microbatches])
    if single is not None:
        few, of_few = Distinct(layout), single.world
        work = _work_of_one(model, cluster, job, single, degree)
    else:
        few = distinct(layout, (), but=OFFLOADING)
        of_few = World.of(model, cluster, job, few.layout)
        placed = [of_few.microbatch_samples, few.layout.microbatches]
        alike = distinct(few.layout, placed, but=(*SCHEDULE, *OFFLOADING))
        work = _work(model, cluster, job, alike.layout, alike.of_kinds(of_few), degree)
        work = alike.all_rows(work if world is not None else work._replace(of_host={}, of_kernels={}))
    bubble = _bubble(model, cluster, few.layout, of_few, degree, work.halves)
    compute = few.all_rows(work.compute) if anywhere(layout.offload_activations) else 0.0
    offload = activation_copy_seconds(model, cluster, job, layout, degree, compute)
    parts = work.parts | {"pipeline_bubble_seconds": bubble}
    offload = offload + few.all_rows(parts.pop("offload_seconds"))
    waiting = _host_floor(model, cluster, layout, few.all_rows(sum(parts.values(), 0.0)) + offload)
    slowest_node = 1 + constant("time.straggler_per_doubling") * math.log2(max(cluster.nodes, 1))
    result, of_host, of_kernels = (
        {name: few.all_rows(seconds * slowest_node) for name, seconds in of.items()}
        for of in (parts, work.of_host, work.of_kernels)
    )
    part = "pipeline_bubble_seconds" if degree > 1 else "data_parallel_seconds"
    waiting = waiting * slowest_node
    result[part] = result[part] + waiting
    result["offload_seconds"] = offload * slowest_node
    return Step(result, of_host | {part: waiting} if world is not None else {}, of_kernels)


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
    model: Model, cluster: Cluster, layout: Layout, world: World, degree: int, halves: list[tuple[Floats, Floats]]
) -> Floats:
    """Return the seconds in which the slowest stage has no work, and seconds of transfers between stages."""
    if degree == 1:
        return 0.0
    forward, backward = [first for first, _ in halves], [second for _, second in halves]
    busy = layout.microbatches * largest([first + second for first, second in halves])
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
