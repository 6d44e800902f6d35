"""Batch-dependent memory: saved activations, checkpointed inputs, logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from smp_advisor.core.elementwise import anywhere, ceil, maximum, minimum, where
from smp_advisor.costs.world import in_flight, stack_of, vocabulary_shards
from smp_advisor.libraries.layout import CONTIGUOUS
from smp_advisor.libraries.state_bytes import RETURNED_HALF_LOGIT_BYTES
from smp_advisor.libraries.version import has_plain_head

if TYPE_CHECKING:
    from smp_advisor.core.elementwise import Floats
    from smp_advisor.costs.world import Stage, World
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.workload.block import Attention, Block
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model


class BlockBytes(NamedTuple):
    """Bytes per GPU of a model's blocks for one microbatch, shape (n,) each."""

    saved: tuple[Floats, ...]
    """Saved activations of one block of each group."""
    score_gradients: Floats
    """The most that the backward pass of eager attention adds to them."""


def block_bytes(model: Model, layout: Layout, world: World, job: Job) -> BlockBytes:
    """Return the bytes of a model's blocks, which are the same in every stage."""
    blocks = [group.block for group in model.groups]
    saved = tuple(block_saved_bytes(block, layout, world, job) for block in blocks)
    gradients: Floats = 0.0
    for block, bytes_ in zip(blocks, saved, strict=True):
        gradients = maximum(gradients, _score_gradient_bytes(block, bytes_, layout, world, job))
    return BlockBytes(saved, gradients)


def block_saved_bytes(block: Block, layout: Layout, world: World, job: Job) -> Floats:
    """Activations that autograd saves for one microbatch of one block, bytes per GPU, shape (n,).

    Half precision, GPT: ``sbh (10 + 24/t + 5 a s / (h t))`` eager, without the last term fused or recomputed;
    sequence parallelism divides the 10 too (Korthikanti et al. 2022, arXiv 2205.05198, eq. 2 and 4).
    """
    tp = layout.tensor_parallel_degree
    element = world.bytes_per_element
    saved = block.saved
    # The library's fused layers replace the model's own activation function under tensor parallelism.
    unfused: Floats = where(tp == 1, saved.unfused_split_elements, 0.0)
    half = saved.half_replicated_bytes if element == 2 else 0.0
    split: float = saved.split_elements
    if layout.state_bytes.fused_kernels:
        half = -half  # neither the fp32 copy nor the normalized values
        # A fused gated activation recomputes what it would save.
        split -= sum(matmul.gate_outputs * matmul.weights_per_token for matmul in block.matmuls)
        unfused = 0.0
    autocast = layout.state_bytes.cast_bytes > 0
    if autocast:
        half = saved.autocast_replicated_bytes
        half += saved.half_replicated_bytes if element == 2 else 0.0
        unfused = 2 * unfused  # as separate operations it runs in fp32
    weighted = _unsaved_expert_elements(block, layout, job)
    replicated = element * (saved.replicated_elements - weighted) + saved.replicated_bytes + half
    divided = element * (split + unfused) + saved.split_bytes
    if job.fp8 and stack_of(job, layout).divided.fp8_weight_bytes and not block.adapter_parameters:
        # Transformer Engine keeps inputs for the gradients of weights in fp8 (``Linear``, ``save_for_backward``).
        # Normalized values of RMSNorms are for the gradient of their own weights: no product reads them.
        inputs = maximum(saved.weight_replicated_elements - saved.half_replicated_bytes / 2, 0.0)
        replicated = replicated - (element - 1) * inputs
        divided = divided - (element - 1) * saved.weight_split_elements
    total = (replicated / where(layout.sequence_parallel, tp, 1) + divided / tp) * world.microbatch_tokens
    eager = element * saved.eager_split_elements * world.microbatch_tokens
    if job.attention == "eager":
        total = total + eager / tp
    elif block.attentions and not block.attentions[0].fusible:
        total = total + where(tp == 1, eager, 0.0)
    for attention in block.attentions:
        total = total + _attention_bytes(attention, layout, world, job)
    total = total + element * saved.merged_elements
    return total + saved.pair_bytes * world.microbatch_samples * world.microbatch_samples if saved.pair_bytes else total


def _unsaved_expert_elements(block: Block, layout: Layout, job: Job) -> Floats:
    """Outputs of grouped experts, which weight their last product's input (``weighted_bias_swiglu_impl``)."""
    elements = block.saved.separate_expert_elements
    if not elements:
        return 0.0
    code = stack_of(job, layout)
    alone, divided = (elements if kind.experts == "grouped" else 0.0 for kind in (code, code.divided))
    return where(layout.tensor_parallel_degree == 1, alone, divided)


def _attention_bytes(attention: Attention, layout: Layout, world: World, job: Job) -> Floats:
    """Bytes that one attention saves in addition to its inputs and output: scores, or a fused kernel's statistics."""
    tp, element = layout.tensor_parallel_degree, world.bytes_per_element
    tokens = attention.heads / tp * attention.query_share * world.microbatch_tokens
    statistics = 4 * tokens  # log-sum-exp, fp32
    if job.attention == "fused" and attention.fusible:
        return statistics
    # One kernel for scale, mask and softmax writes 16 bits whatever it computes in.
    fused, autocast = _has_softmax_kernel(layout, job), layout.state_bytes.cast_bytes > 0
    score = attention.eager_score_bytes(element, fused=fused, autocast=autocast)
    scores: Floats = score * tokens * attention.keys_per_query(world.sequence_length)
    scores = where(layout.selective_recomputation, 0.0, scores)
    # The library's own layers, used under tensor parallelism, always have a fused form.
    return where(tp == 1, scores, statistics) if job.attention == "fused" else scores


def _has_softmax_kernel(layout: Layout, job: Job) -> bool:
    code = stack_of(job, layout)
    return code.eager == "fused-softmax" and not code.fp32_softmax


def _score_gradient_bytes(block: Block, saved: Floats, layout: Layout, world: World, job: Job) -> Floats:
    """Return what the backward pass of eager attention has beyond the saved activations of its block, bytes per GPU.

    At the softmax, its output, the gradient of that and the gradient of its input exist at once, each as large as the
    scores, and copies and masks after it are free: traced, the peak of a checkpointed Llama layer over 1,024 tokens is
    1.4 times what it saves. One kernel for the softmax writes the second gradient over the first
    (Megatron-LM, ``scaled_masked_softmax_backward``). The layers after the attention, about half of the rest of the
    block, are free by then.
    """
    tp, element = layout.tensor_parallel_degree, world.bytes_per_element
    fused, autocast = _has_softmax_kernel(layout, job), layout.state_bytes.cast_bytes > 0
    peak: Floats = 0.0
    scores: Floats = 0.0
    for attention in block.attentions:
        if job.attention == "fused" and attention.fusible:
            continue
        pairs = attention.heads / tp * attention.query_share * world.microbatch_tokens
        pairs = pairs * attention.keys_per_query(world.sequence_length)
        softmax = 4 if (attention.scores_in_fp32 or autocast) and not fused else element
        score = attention.eager_score_bytes(element, fused=fused, autocast=autocast)
        beyond = element if fused else max(3 * softmax - score, element)
        gradients = (beyond + where(layout.selective_recomputation, score, 0.0)) * pairs
        peak = maximum(peak, gradients if job.attention == "eager" else where(tp == 1, gradients, 0.0))
        scores = scores + _attention_bytes(attention, layout, world, job)
    return maximum(peak - (saved - scores) / 2, 0.0)


def unit_layers(layout: Layout, stage: Stage) -> Floats:
    """Return the blocks per recomputed unit, shape (n,); 0 without checkpointing."""
    layers = max(stage.layers, 1)
    return where(layout.checkpoint_layers == CONTIGUOUS, layers, minimum(layout.checkpoint_layers, layers))


def _resident_checkpoints(model: Model, layout: Layout, world: World, stage: Stage) -> tuple[Floats, Floats]:
    """Checkpointed inputs on the GPU and in host memory, bytes per GPU.

    Offloading moves the inputs of waiting microbatches to the host and loads `activation_loading_horizon` of them back.
    Assumption: the inputs of the running microbatch stay on the GPU. With `offload_running`, at most
    `activation_loading_horizon` layers have their inputs on the GPU (SMP v2, parameter reference).
    """
    unit = maximum(unit_layers(layout, stage), 1)
    split = where(layout.split_checkpoints | layout.sequence_parallel, layout.tensor_parallel_degree, 1)
    state = layout.state_bytes
    element = (2 if state.doubled_inputs else 1) * (4 if state.fp32_inputs else world.bytes_per_element)
    running: Floats = 0.0  # of one microbatch
    for group, count in zip(model.groups, stage.block_counts, strict=True):
        width = element * group.block.hidden
        # Every unit saves its own input. The encoder's output, which all of them read, is saved once.
        tensors = ceil(count / unit) + (group.block.input_tensors - 1 if count else 0)
        running = running + tensors * width * world.microbatch_tokens / split
    everything = running * in_flight(layout, stage.index)
    units = maximum(ceil(stage.layers / maximum(unit_layers(layout, stage), 1)), 1)
    loaded = layout.activation_loading_horizon * running / units
    without_waiting = running + minimum(everything - running, loaded)
    remaining = where(layout.offload_running, minimum(running, loaded), without_waiting)
    on_gpu = where(layout.offload_activations, remaining, everything)
    return on_gpu, everything - on_gpu


def offloaded_activation_bytes(model: Model, layout: Layout, world: World, stage: Stage) -> Floats:
    if not anywhere(layout.offload_activations):
        return 0.0
    stored: dict[Any, Floats] = vars(layout).setdefault("offloaded", {})
    key = (model, world.sequence_length, stage.kind)
    if key not in stored:  # memory and the time of copies read the same
        stored[key] = _resident_checkpoints(model, layout, world, stage)[1]
    return stored[key]


def activation_bytes(model: Model, layout: Layout, world: World, stage: Stage, blocks: BlockBytes) -> dict[str, Floats]:
    """Return the bytes of activations, of the recomputed unit and of logits by category, shape (n,) each."""
    saved = blocks.saved
    element = world.bytes_per_element
    checkpointed = layout.checkpoint_layers != 0
    flight = in_flight(layout, stage.index)
    every = sum((count * bytes_ for count, bytes_ in zip(stage.block_counts, saved, strict=True)), 0.0)
    largest: Floats = 0.0
    for count, bytes_ in zip(stage.block_counts, saved, strict=True):
        if count:
            largest = maximum(largest, bytes_)
    inputs, _ = _resident_checkpoints(model, layout, world, stage)
    products = _stored_product_bytes(model, layout, world, stage)
    unit = unit_layers(layout, stage)
    share = 1 / layout.checkpoint_period
    outside: Floats = 0.0
    if stage.first:  # embedding dropout mask, one byte per element
        outside = outside + model.shape.hidden * world.microbatch_tokens * flight
    if stage.last:  # final norm and head input
        outside = outside + 2 * element * model.shape.hidden * world.microbatch_tokens * flight
    outside = outside / where(layout.sequence_parallel, layout.tensor_parallel_degree, 1)
    if stage.first and model.outside_elements:
        outside = outside + element * model.outside_elements * world.microbatch_tokens * flight
    outside = outside + _position_bias_bytes(model, layout, world, stage) * flight
    logits = _logits_bytes(model, layout, world, stage)
    recomputed = where(unit == stage.layers, every, largest * unit) + blocks.score_gradients
    # The loss and its gradient are free by the first softmax of the backward pass.
    behind = where(checkpointed, 0.0, maximum(blocks.score_gradients - logits, 0.0))
    return {
        "activations": where(checkpointed, inputs * share + every * flight * (1 - share), every * flight)
        + products * flight
        + outside
        + behind,
        "recomputation": where(checkpointed, recomputed, 0.0),
        "logits": logits,
    }


def _products(block: Block) -> list[tuple[float, bool, int]]:
    """Elements per token of each product's output (gates, queries, keys apart), whether it is divided, and experts."""
    gated, attentions = any(m.gate_outputs for m in block.matmuls), iter(block.attentions)
    result: list[tuple[float, bool, int]] = []
    for product in block.matmuls:
        widths = [product.outputs]
        if product.gate_outputs:
            widths = [product.gate_outputs, product.outputs - product.gate_outputs]
        elif product.name == "qkv" and gated and (attention := next(attentions, None)):
            keys = attention.kv_heads * attention.head_dim
            widths = [product.outputs - 2 * keys, keys, keys]
        uses = product.weights_per_token * product.rows_per_token
        result += [(width * uses, product.split == "column", product.experts) for width in widths]
    return result


def _stored_product_bytes(model: Model, layout: Layout, world: World, stage: Stage) -> Floats:
    """Outputs that the blocks of a stage store next to their checkpointed inputs, for one microbatch, bytes per GPU.

    torchtitan's selective checkpointing (``_save_list`` with every second ``aten.mm``): the outputs of every second
    matrix product, from the first on, and of fused attention. Grouped products of experts are no ``aten.mm``, and the
    last product is left out: the sum with the residual does not need it in the backward pass.
    """
    if not anywhere(layout.keeps_products):
        return 0.0
    tp = layout.tensor_parallel_degree
    elements: Floats = 0.0
    for group, count in zip(model.groups, stage.block_counts, strict=True):
        stored = [(width, split) for width, split, experts in _products(group.block) if experts == 1][:-1:2]
        divided, replicated = (sum(width for width, split in stored if split is side) for side in (True, False))
        attended = sum(a.heads * a.head_dim for a in group.block.attentions if a.fusible)
        alone = replicated / where(layout.sequence_parallel, tp, 1)
        elements = elements + count * ((divided + attended) / tp + alone)
    return where(layout.keeps_products, world.bytes_per_element * elements * world.microbatch_tokens, 0.0)


def _position_bias_bytes(model: Model, layout: Layout, world: World, stage: Stage) -> Floats:
    """Bytes of the biases that each stack adds to its scores, and of the gradients of the running stack's biases."""
    saved: Floats = 0.0
    gradients: Floats = 0.0
    for group, count in zip(model.groups, stage.block_counts, strict=True):
        biased = [attention for attention in group.block.attentions if attention.position_biases] if count else []
        for attention in biased:
            # The padding mask is added to the biases, so every sample has its own tensor.
            queries = attention.heads / layout.tensor_parallel_degree * attention.query_share * world.microbatch_tokens
            biases = world.bytes_per_element * queries * attention.keys_per_query(world.sequence_length)
            saved = saved + biases
            gradients = maximum(gradients, len(biased) * biases)
    return saved + gradients


def head_rows(model: Model, world: World) -> Floats:
    return model.head.rows_per_token * world.microbatch_tokens if model.head.per_token else world.microbatch_samples


def computes_loss_in_parts(model: Model, layout: Layout) -> bool:
    """Return whether the exported script computes the loss of the model for a part of the tokens at a time."""
    exported = model.config_json.strip() not in ("", "{}") and has_plain_head(model.family)
    return exported and layout.state_bytes.loss_in_parts


_PART_TOKENS, _PART_COLUMNS = 4096, 32_768
"""Tile of logits of TRL 1.16.0 (``TOKEN_CHUNK_SIZE``, ``_CHUNKED_LOGPROB_CHUNK_SIZE``)."""


def _part_bytes(model: Model, layout: Layout, world: World, rows: Floats) -> Floats:
    """Return the loss in parts: of TRL's trainers or the plain script, the one with more.

    TRL has a tile of logits and the gradients of its product in fp32 (``kernels/chunked_logprob.py``), the plain script
    the logits of a part with a few copies, counted as 2 bytes for each of all logits.
    """
    hidden, columns, element = model.shape.hidden, model.head.outputs, world.bytes_per_element
    trained = layout.state_bytes.frozen_bytes is None
    tile = element * minimum(rows, _PART_TOKENS) * min(columns, _PART_COLUMNS)
    return maximum(tile + 4.0 * hidden * (rows + trained * columns), element * rows * columns)


def _logits_bytes(model: Model, layout: Layout, world: World, stage: Stage) -> Floats:
    """Logits and loss at their peak; only ``pipeline="simple"`` keeps those of several microbatches."""
    if not stage.last:
        return 0.0
    rows = head_rows(model, world)
    microbatches = where(layout.simple_pipeline, in_flight(layout, stage.index), 1)
    columns = model.head.outputs / vocabulary_shards(model, layout)
    logit_bytes = layout.state_bytes.logit_bytes
    if not model.head.loss_in_fp32 and world.bytes_per_element == 2 and not layout.state_bytes.cast_bytes:
        logit_bytes = min(logit_bytes, RETURNED_HALF_LOGIT_BYTES)
    logits: Floats = (4 * (microbatches - 1) + logit_bytes) * rows * columns
    if computes_loss_in_parts(model, layout):
        logits = minimum(logits, _part_bytes(model, layout, world, rows))
    # The output weight's gradient before its accumulation. A frozen weight has none; with sharded parameters it is a
    # buffer of the reduction.
    trained = layout.state_bytes.frozen_bytes is None
    return logits + where(layout.shard_level < 3, trained * world.bytes_per_element * model.shape.hidden * columns, 0.0)
