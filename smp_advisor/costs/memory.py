"""Memory of one GPU of one pipeline stage, term by term."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smp_advisor.costs.constants import constant
from smp_advisor.costs.layout import CONTIGUOUS
from smp_advisor.costs.pipeline import in_flight

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from smp_advisor.costs.layout import Layout
    from smp_advisor.costs.partition import Stage
    from smp_advisor.costs.world import World
    from smp_advisor.workload.block import Block
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

    Floats = NDArray[np.float64]

__all__ = [
    "block_saved_bytes",
    "host_bytes",
    "local_parameters",
    "memory_error_bytes",
    "stage_bytes",
    "vocabulary_shards",
]

GIB = 2**30


def vocabulary_shards(model: Model, layout: Layout) -> Floats:
    """Over how many GPUs embedding, head and logits are divided, shape (n,).

    The tensor-parallel degree where it divides the vocabulary, else 1: tensor parallelism skips modules whose sizes it
    does not divide. That the head is divided at all is not documented; `memory_error_bytes` allows for it.
    """
    vocabulary = max(model.shape.vocab, 1)
    degree = layout.tensor_parallel_degree
    divides = (vocabulary % degree == 0) & (model.head.per_token)
    return np.where(divides, degree, 1).astype(np.float64)


def local_parameters(model: Model, layout: Layout, stage: Stage) -> tuple[Floats, Floats]:
    """Parameters on one GPU of a stage: (divided by tensor parallelism, replicated), shape (n,) each.

    A tied embedding is counted on the first and on the last stage: the library keeps both modules on one partition
    and does not say which.
    """
    tp = layout.tensor_parallel_degree
    shards = vocabulary_shards(model, layout)
    blocks = [(group.block, count) for group, count in zip(model.groups, stage.block_counts, strict=True)]
    split = sum(block.split_parameters * count for block, count in blocks) / tp
    replicated = np.full(len(layout), float(sum(block.replicated_parameters * count for block, count in blocks)))
    vocabulary = 0
    if stage.first:
        vocabulary += model.token_embedding_parameters
        replicated += model.embedding_parameters - model.token_embedding_parameters
    if stage.last:
        replicated += model.final_parameters
        if model.head.tied:
            replicated += model.head.parameters
            vocabulary += 0 if stage.first else model.token_embedding_parameters
        else:
            vocabulary += model.head.parameters
    divided = vocabulary / shards
    return split + np.where(shards > 1, divided, 0.0), replicated + np.where(shards > 1, 0.0, divided)


def block_saved_bytes(block: Block, layout: Layout, world: World, job: Job) -> Floats:
    """What autograd keeps of one microbatch of one block, bytes per GPU, shape (n,).

    Half precision, GPT: ``sbh (10 + 24/t + 5 a s / (h t))`` eager, without the last term fused (Korthikanti et al.
    2022, arXiv 2205.05198, eq. 2).
    """
    tp = layout.tensor_parallel_degree
    element = world.bytes_per_element
    saved = block.saved
    # The library's fused layers replace the model's own activation function under tensor parallelism.
    unfused = np.where(tp == 1, saved.unfused_split_elements, 0.0)
    half = saved.half_replicated_bytes if element == 2 else 0.0
    per_token = (
        element * (saved.replicated_elements + (saved.split_elements + unfused) / tp)
        + saved.replicated_bytes
        + half
        + saved.split_bytes / tp
    )
    total = per_token * world.microbatch_tokens
    if job.attention == "eager":
        total = total + element * saved.eager_split_elements / tp * world.microbatch_tokens
    for attention in block.attentions:
        heads = attention.heads / tp
        if job.attention == "fused":
            total = total + 4 * heads * world.microbatch_tokens  # log-sum-exp, fp32
        else:
            # Softmax output, dropout output and mask; without dropout the softmax output and, in half precision,
            # the fp32 copy that eager implementations compute it in.
            extra = 4 if element == 2 else 0
            score = 2 * element + 1 if attention.dropout else element + extra
            total = total + score * heads * world.microbatch_tokens * attention.keys_per_query(world.sequence_length)
    return total


def _state(job: Job, split: Floats, replicated: Floats, layout: Layout, world: World) -> dict[str, Floats]:
    """Parameters, gradients, optimizer state and fp32 copies, bytes.

    fp16 with Adam: 2 + 2 + 8 + (4 + 4) = 20 bytes a parameter (SMP documentation, Introduction to model parallelism);
    fp32: 4 + 4 + 8. `shard_optimizer_state` divides the last 16 over the reduced data-parallel group. For modules that
    tensor parallelism leaves whole the library could divide them over the whole data-parallel group; that is not
    documented, so it is not counted on. Sharded data parallelism divides all of it.
    """
    element = world.bytes_per_element
    moments = 8.0 if job.optimizer == "adam" else 4.0
    copies = 8.0 if element == 2 else 0.0
    whole = split + replicated
    sharded = layout.sharded_data_parallel_degree
    by_optimizer = layout.shard_optimizer_state
    owned = np.where(by_optimizer, whole / world.replicas, whole) / sharded
    return {
        "parameters": element * whole / sharded,
        "gradients": element * whole / sharded,
        "optimizer_state": moments * owned,
        "fp32_copies": copies * owned,
    }


def _unit_layers(layout: Layout, stage: Stage) -> NDArray[np.int64]:
    """Blocks that one recomputation brings back, shape (n,); 0 without checkpointing."""
    layers = max(stage.layers, 1)
    return np.where(layout.checkpoint_layers == CONTIGUOUS, layers, np.minimum(layout.checkpoint_layers, layers))


def _checkpoint_bytes(model: Model, layout: Layout, world: World, stage: Stage) -> Floats:
    """Checkpointed inputs of one microbatch on one stage: one per unit, bytes per GPU."""
    unit = np.maximum(_unit_layers(layout, stage), 1)
    split = np.where(layout.split_checkpoints, layout.tensor_parallel_degree, 1)
    total = np.zeros(len(layout))
    for group, count in zip(model.groups, stage.block_counts, strict=True):
        width = world.bytes_per_element * group.block.hidden * group.block.input_tensors
        total = total + np.ceil(count / unit) * width * world.microbatch_tokens / split
    return total


def _resident_checkpoints(model: Model, layout: Layout, world: World, stage: Stage) -> tuple[Floats, Floats]:
    """Checkpointed inputs on the GPU and in host memory, bytes per GPU.

    Offloading moves out the inputs of microbatches that are not running; `activation_loading_horizon` of them are
    back on the GPU. Assumption: the inputs of the running microbatch stay on the GPU.
    """
    one = _checkpoint_bytes(model, layout, world, stage)
    everything = one * in_flight(layout)
    units = np.maximum(np.ceil(stage.layers / np.maximum(_unit_layers(layout, stage), 1)), 1)
    back = np.minimum(everything - one, layout.activation_loading_horizon * one / units)
    on_gpu = np.where(layout.offload_activations, one + back, everything)
    return on_gpu, everything - on_gpu


def host_bytes(model: Model, layout: Layout, world: World, stage: Stage) -> Floats:
    """Host memory that one GPU's offloaded activations take."""
    return _resident_checkpoints(model, layout, world, stage)[1]


def stage_bytes(
    model: Model, job: Job, layout: Layout, world: World, stage: Stage, saved: tuple[Floats, ...]
) -> dict[str, Floats]:
    """Peak bytes of one GPU of one stage by category, arrays of shape (n,).

    Parameters
    ----------
    saved
        `block_saved_bytes` of each of the model's groups.

    Notes
    -----
    The categories add up: with buckets that persist, as the library keeps them, the peak is parameters + optimizer +
    gradients + activations + logits, not a maximum over phases.
    """
    element = world.bytes_per_element
    split, replicated = local_parameters(model, layout, stage)
    result = _state(job, split, replicated, layout, world)

    checkpointed = layout.checkpoint_layers != 0
    flight = in_flight(layout)
    every = sum(
        (count * bytes_ for count, bytes_ in zip(stage.block_counts, saved, strict=True)), np.zeros(len(layout))
    )
    largest = np.zeros(len(layout))
    for count, bytes_ in zip(stage.block_counts, saved, strict=True):
        if count:
            largest = np.maximum(largest, bytes_)
    inputs, _ = _resident_checkpoints(model, layout, world, stage)
    unit = _unit_layers(layout, stage)
    around = np.zeros(len(layout))
    if stage.first:  # embedding dropout mask, one byte an element
        around = around + model.shape.hidden * world.microbatch_tokens * flight
    if stage.last:  # final norm and head input
        around = around + 2 * element * model.shape.hidden * world.microbatch_tokens * flight
    result["activations"] = np.where(checkpointed, inputs, every * flight) + around
    result["recomputation"] = np.where(checkpointed, np.where(unit == stage.layers, every, largest * unit), 0.0)
    result["logits"] = _logits_bytes(model, layout, world) if stage.last else np.zeros(len(layout))
    result["communication"] = _communication_bytes(layout, world, split + replicated)
    dynamic = result["activations"] + result["recomputation"] + result["logits"]
    result["allocator_reserve"] = constant("memory.dynamic_reserve") * dynamic
    result["context"] = np.full(len(layout), constant("memory.context_gib") * GIB)
    return result


def _logits_bytes(model: Model, layout: Layout, world: World) -> Floats:
    """Logits and loss at their peak, the start of the backward pass: 4 + 8 bytes a logit.

    The loss keeps 4 bytes a logit (fp32) and its backward pass takes 8 more. Only ``pipeline="simple"`` keeps more than
    one microbatch's: in the interleaved schedule the last stage runs backward at once.
    """
    rows = world.microbatch_tokens if model.head.per_token else world.microbatch_samples
    kept = np.where(layout.simple_pipeline, in_flight(layout), 1)
    return (4 * kept + 8) * rows * model.head.outputs / vocabulary_shards(model, layout)


def _communication_bytes(layout: Layout, world: World, parameters: Floats) -> Floats:
    """NCCL's own memory, reduction buckets and parameters gathered for use."""
    element = world.bytes_per_element
    degree = layout.sharded_data_parallel_degree
    groups = (
        (layout.tensor_parallel_degree > 1).astype(np.float64)
        + (layout.pipeline_parallel_degree > 1)
        + (world.replicas > 1)
        + (degree > 1)
    )
    nccl = (constant("memory.nccl_base_gib") + constant("memory.nccl_per_group_gib") * groups) * GIB
    bucket = np.where(world.data_parallel_degree > 1, constant("memory.ddp_bucket_mib") * 2**20, 0.0)
    live = np.minimum(layout.max_live_parameters, parameters)
    reduce = np.minimum(layout.reduce_bucket_elements, parameters)
    # What is gathered beyond the GPU's own shard.
    gathered = element * (live * (1 - 1 / degree) + reduce)
    return nccl + np.where(degree > 1, gathered, bucket)


def memory_error_bytes(by_category: dict[str, Floats], shards: Floats, activation_band: float) -> Floats:
    """One standard deviation of the stage's prediction error, bytes, shape (n,).

    Independent errors of state, activations, context and of the division of the logits add in squares; starting values
    until they are calibrated.

    Parameters
    ----------
    by_category
        `stage_bytes` of the stage.
    shards
        `vocabulary_shards` of the plans.
    activation_band
        `Model.activation_band`: nine of ten inferred shapes stay within it, 1.64 standard deviations.
    """
    state = sum((by_category[name] for name in ("parameters", "gradients", "optimizer_state", "fp32_copies")), 0.0)
    dynamic = sum((by_category[name] for name in ("activations", "recomputation", "logits", "allocator_reserve")), 0.0)
    shaped = (1 + constant("memory.dynamic_reserve")) * (by_category["activations"] + by_category["recomputation"])
    return np.sqrt(
        (constant("memory.error_state") * state) ** 2
        + (constant("memory.error_dynamic") * dynamic) ** 2
        + (constant("memory.error_context_gib") * GIB) ** 2
        + (activation_band / 1.64 * shaped) ** 2
        + (constant("memory.error_vocabulary_split") * by_category["logits"] * (shards - 1)) ** 2
    )
