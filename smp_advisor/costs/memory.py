"""Memory per GPU of one pipeline stage, term by term, and the time of the allocator near full memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from smp_advisor.core import GIB
from smp_advisor.core.elementwise import anywhere, inverted, largest, maximum, minimum, where
from smp_advisor.core.files import sentence
from smp_advisor.costs.activations import activation_bytes, offloaded_activation_bytes, unit_layers
from smp_advisor.costs.constants import constant
from smp_advisor.costs.distinct import OFFLOADING, SCHEDULE, distinct
from smp_advisor.costs.world import (
    LocalParameters,
    local_parameters,
    offloaded_state_bytes,
    owned_parameters,
    paged_state_bytes,
    state_bytes,
    trained_parameters,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smp_advisor.core.elementwise import Bools, Floats
    from smp_advisor.costs.activations import BlockBytes
    from smp_advisor.costs.distinct import Distinct
    from smp_advisor.costs.world import Stage, World
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.workload.model import Model


class _Fixed(NamedTuple):
    """Bytes of a stage that do not depend on its batch, shape (n,) each."""

    state: dict[str, Floats]
    """By category."""
    buffers: Floats
    at_loss: Floats
    """Of the buffers, those that exist when the loss is computed."""
    update: Floats
    """Temporary memory of the optimizer's step."""
    casts: Floats
    context: Floats


def _fixed(model: Model, layout: Layout, world: World, stage: Stage) -> _Fixed:
    local, state, sharded = local_parameters(model, layout, stage), layout.state_bytes, layout.shard_level >= 3
    by_category = state_bytes(local, layout, world)
    by_category["parameters"] = by_category["parameters"] + _fp8_copy_bytes(layout, world, stage, local)
    buffers = _buffer_bytes(model, layout, world, local)
    # With sharded parameters, only the head is gathered at the loss, and no gradient waits for its reduction.
    # Strategies that keep gathered blocks until the backward pass have gathered all parameters by then: a traced step
    # of Llama 3.2 1B has 1.8 GiB more than the head.
    gathered = where(layout.keeps_gathered, _all_gathered_bytes(layout, local), world.bytes_per_element * local.root)
    update = (state.step_bytes + where(sharded, state.late_copy_bytes, 0.0)) * owned_parameters(local, layout, world)
    return _Fixed(
        state=by_category,
        buffers=buffers,
        at_loss=where(sharded, minimum(gathered, buffers), buffers),
        update=where(layout.offload_state, 0.0, update),
        casts=state.cast_bytes * trained_parameters(local, layout).total,
        context=_context_bytes(layout, world),
    )


def stage_bytes(model: Model, layout: Layout, world: World, stage: Stage, blocks: BlockBytes) -> dict[str, Floats]:
    """Peak bytes per GPU of one stage by category, which add up, shape (n,); the optimizer's step is the excess."""
    if "alike" not in vars(layout):  # all stages have the same
        vars(layout)["alike"] = distinct(layout, [layout.microbatches == 1], but=(*SCHEDULE, *OFFLOADING))
    alike: Distinct = vars(layout)["alike"]
    fixed = alike.all_rows(_fixed(model, alike.layout, alike.of_kinds(world), stage))
    buffers, result = fixed.buffers, fixed.state | activation_bytes(model, layout, world, stage, blocks)
    recomputed, logits, gradients = result["recomputation"], result["logits"], result["gradients"]
    # The loss and its gradient are free when the first block is recomputed, so the larger of the two counts.
    result["recomputation"] = maximum(recomputed - logits, 0.0)
    result["communication"] = maximum(recomputed + buffers, logits + fixed.at_loss) - maximum(recomputed, logits)
    if not layout.state_bytes.gradients_persist:
        result |= _without_overlap(result, recomputed, buffers, layout.microbatches == 1)
    # By the optimizer's step the memory of the passes is free, including casts of weights.
    free_by_then = result["activations"] + result["recomputation"] + result["logits"] + fixed.casts
    free_by_then = free_by_then - (gradients - result["gradients"])
    free_by_then = free_by_then + where(layout.shard_level >= 3, result["communication"], 0.0)
    result["optimizer_step"] = maximum(fixed.update - free_by_then, 0.0)
    result["context"] = fixed.context
    result["allocator_reserve"] = _reserve_bytes(result, world.usable_bytes)
    return result


def _fp8_copy_bytes(layout: Layout, world: World, stage: Stage, local: LocalParameters) -> Floats:
    """Copies of the blocks' weights in fp8, which are not sharded, bytes.

    Sharded parameters are new in every forward pass, so their copies last until the backward pass: those of all blocks,
    or with checkpointing those of one unit. Source: Transformer Engine, ``prepare_te_modules_for_fsdp``.
    """
    if not world.fp8_copy_bytes:
        return 0.0
    units = where(layout.checkpoint_layers == 0, max(stage.layers, 1), unit_layers(layout, stage))
    share = where(layout.shard_level >= 3, units / max(stage.layers, 1), 1.0)
    return world.fp8_copy_bytes * (local.total - local.root) * share


def _without_overlap(
    by_category: dict[str, Floats], recomputed: Floats, buffers: Floats, fresh: Bools
) -> dict[str, Floats]:
    """Return the memory of a step without gradients at its start: the peak of the backward pass is at either end.

    At its start all activations are stored and no gradient; at its end all gradients, and the unit that is recomputed.
    `fresh` rows have one microbatch, so that no gradients of earlier ones are stored.
    """
    start = {name: by_category[name] for name in ("activations", "recomputation", "logits", "communication")}
    nothing = 0.0
    end = {"activations": nothing, "recomputation": recomputed, "logits": nothing, "communication": buffers}
    gradients = by_category["gradients"]
    late = fresh & (gradients + recomputed + buffers > _sum(start, start))
    changed = {name: where(late, end[name], values) for name, values in start.items()}
    return changed | {"gradients": where(fresh & inverted(late), 0.0, gradients)}


_DYNAMIC = ("activations", "recomputation", "logits", "optimizer_step")


def _sum(by_category: dict[str, Floats], names: Iterable[str]) -> Floats:
    total: Floats = 0.0
    for name in names:
        total = total + by_category[name]
    return total


def _reserve_bytes(by_category: dict[str, Floats], usable_bytes: float) -> Floats:
    """Memory that the allocator reserves beyond allocated memory: freed blocks, under pressure fragmentation."""
    dynamic = _sum(by_category, _DYNAMIC)
    room = usable_bytes - _sum(by_category, by_category)
    least = constant("memory.fragmentation") * dynamic
    return maximum(minimum(constant("memory.dynamic_reserve") * dynamic, room), least)


def needed_bytes(by_category: dict[str, Floats]) -> Floats:
    """Required memory of a stage: everything except reserved memory that the allocator can release."""
    allocated = _sum(by_category, (name for name in by_category if name != "allocator_reserve"))
    return allocated + constant("memory.fragmentation") * _sum(by_category, _DYNAMIC)


def host_bytes(model: Model, layout: Layout, world: World, stage: Stage) -> Floats:
    """Host memory of the data that one GPU of a stage offloads."""
    total = offloaded_activation_bytes(model, layout, world, stage)
    if anywhere(layout.offload_state):
        total = total + offloaded_state_bytes(local_parameters(model, layout, stage), layout, world)
    if layout.state_bytes.paged_moment_bytes:
        total = total + paged_state_bytes(local_parameters(model, layout, stage), layout, world)
    return total


def _context_bytes(layout: Layout, world: World) -> Floats:
    """CUDA context and libraries, and NCCL's channels for each kind of process group."""
    groups = (
        1.0 * (layout.tensor_parallel_degree > 1)
        + (layout.pipeline_parallel_degree > 1)
        + (layout.context_parallel_degree > 1)
        + (world.replicas > 1)
        + ((layout.shard_level >= 3) & (world.shards < world.reduction_degree))
    )
    nccl = constant("memory.nccl_per_group_gib") * groups + constant("memory.nccl_base_gib") * float(world.gpus > 1)
    context: Floats = (constant("memory.context_gib") + nccl) * GIB
    return context


def _buffer_bytes(model: Model, layout: Layout, world: World, local: LocalParameters) -> Floats:
    """Reduction buckets and gathered parameters.

    In addition to the stored shards, FSDP gathers full units in the compute type: the running block, the prefetched
    ones and the root (embedding, head). It reduces the gradients of one block at a time. `max_live_parameters` limits
    gathered parameters in libraries with this setting.
    """
    element = world.bytes_per_element
    buckets = layout.state_bytes.bucket_elements * layout.state_bytes.reduced_bytes
    copied = layout.state_bytes.reduced_bytes * trained_parameters(local, layout).total
    bucket = where(
        world.data_parallel_degree > 1,
        maximum(constant("memory.ddp_bucket_mib") * 2**20, minimum(buckets, copied)),
        0.0,
    )
    live = minimum(layout.max_live_parameters, local.total)
    reduce = minimum(layout.reduce_bucket_elements, local.total)
    frozen = layout.state_bytes.frozen_bytes is not None
    # Parameters gathered in addition to the GPU's own shard. FSDP gathers copies of all, whatever it stores. The
    # gradients of an adapter are reduced together.
    missing = layout.state_bytes.gathered_bytes * live * (1 - 1 / world.shards)
    bounded: Floats = where(layout.keeps_gathered, _all_gathered_bytes(layout, local), missing)
    bounded = bounded + (layout.state_bytes.reduced_bytes * local.adapters if frozen else element * reduce)
    tp, ep = layout.tensor_parallel_degree, layout.expert_parallel_degree
    block = largest(
        [
            (b.split_parameters - b.expert_parameters) / tp + b.replicated_parameters + b.expert_parameters / (tp * ep)
            for b in (group.block for group in model.groups)
        ]
    )
    root = local.root if layout.state_bytes.root_stays_gathered else 0.0
    units = layout.state_bytes.gathered_bytes * layout.prefetched_units * block + element * root
    reduced = local.adapters if frozen else maximum(block, local.root)
    gradients = layout.state_bytes.reduced_bytes * reduced
    gathered = where(layout.prefetched_units > 0, units + gradients, bounded)
    # A GPU with all parameters gathers nothing, but casts one unit at a time if its parameters are wider.
    casts = not frozen and layout.state_bytes.parameter_bytes > layout.state_bytes.compute_bytes
    buffers = where(layout.shard_level >= 3, where((world.shards > 1) | casts, gathered, 0.0), bucket)
    return buffers + _dequantized_bytes(model, layout)


def _all_gathered_bytes(layout: Layout, local: LocalParameters) -> Floats:
    """Bytes of all parameters of a stage when they are gathered; those outside the blocks are never quantized."""
    state_bytes = layout.state_bytes
    return state_bytes.gathered_bytes * (local.total - local.root) + state_bytes.compute_bytes * local.root


def _dequantized_bytes(model: Model, layout: Layout) -> Floats:
    """Bytes of the largest quantized product in the compute type. Its weight is dequantized for every use."""
    state_bytes = layout.state_bytes
    if state_bytes.frozen_bytes is None or not state_bytes.unpacked:
        return 0.0
    largest = max(m.inputs * m.outputs for group in model.groups for m in group.block.matmuls)
    return state_bytes.compute_bytes * largest / layout.tensor_parallel_degree


def memory_error_squares(
    by_category: dict[str, Floats],
    shards: Floats,
    activation_band: float,
    *,
    of: Literal["allocated", "reserved", "total"] = "total",
) -> dict[str, Floats]:
    """Squares of the independent parts of a stage's error by `MEMORY_QUANTITIES`, shape (n,): one deviation in bytes.

    Errors of the state, the batch-dependent memory, the allocator's reserve, the context and the division of the logits
    over `shards`. They are calibrated on published memory rows (``benchmarks/calibrate.py``): 95 % of the rows are
    within 1.96 standard deviations of their sum. `of` is the predicted quantity: tensors only (allocated), with the
    allocator's reserve, or also with context and NCCL.
    """
    state = sum((by_category[name] for name in ("parameters", "gradients", "optimizer_state", "fp32_copies")), 0.0)
    dynamic = sum((by_category[name] for name in (*_DYNAMIC, "communication")), 0.0)
    shaped = (1 + constant("memory.dynamic_reserve")) * (by_category["activations"] + by_category["recomputation"])
    split = constant("memory.error_vocabulary_split") * by_category["logits"] * (shards - 1)
    reserve = 0.0 if of == "allocated" else constant("memory.error_reserve") * by_category["allocator_reserve"]
    return {
        "state": (constant("memory.error_state") * state) ** 2,
        "activations": (constant("memory.error_dynamic") * dynamic) ** 2
        + (activation_band / 1.64 * shaped) ** 2
        + split**2,
        "allocator": reserve**2,
        "context": (constant("memory.error_context_gib") * GIB) ** 2 if of == "total" else 0.0,
    }


def pressure_factor(needed_bytes: Floats, usable_bytes: float) -> Floats:
    """Step time relative to that with free memory; 1 for a plan that does not fit, which has no step."""
    first = constant("memory.pressure_from")
    share = needed_bytes / usable_bytes
    over = where(share <= 1, maximum(share - first, 0.0), 0.0) / (1 - first)
    return 1 + (constant("memory.pressure_factor") - 1) * over


def pressure_warning(needed_bytes: float, usable_bytes: float) -> tuple[str, ...]:
    """Return a sentence for a plan that fits with little memory to spare."""
    factor = float(pressure_factor(needed_bytes, usable_bytes))
    if factor == 1:
        return ()
    return (sentence("costs", "pressure", percent=100 * needed_bytes / usable_bytes, factor=factor),)
