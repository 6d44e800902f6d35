"""Time of one microbatch on one pipeline stage: kernels, their launches by the host, and exchanges inside blocks.

Launches are asynchronous, so the GPU waits for the host only where a block's kernels take less time than their
launches.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from smp_advisor.core.elementwise import anywhere, inverted, maximum, minimum, where
from smp_advisor.costs.activations import computes_loss_in_parts, head_rows
from smp_advisor.costs.communication import Group, all_gather_seconds, all_reduce_seconds, all_to_all_seconds
from smp_advisor.costs.constants import constant, gpu_constant, memory_bandwidth, peak_flops
from smp_advisor.costs.distinct import one
from smp_advisor.costs.kernels import attention_seconds, product_seconds, products_seconds
from smp_advisor.costs.world import owned_parameters, stack_of, stage_kinds, trained_parameters, vocabulary_shards

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.cluster.table import Instance
    from smp_advisor.core.elementwise import Floats
    from smp_advisor.costs.distinct import One
    from smp_advisor.costs.world import LocalParameters, Stage, World
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.workload.block import Block, Kernels
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model
    from smp_advisor.workload.stack import Stack


_WEIGHT_CASTS = 2.0
"""Kernels that autocast adds to the first product with a weight: casts of weight and bias, which it keeps until the end
of the pass (documentation of torch.autocast, ``cache_enabled``). Every product has one more, that of its input."""


def host_seconds(
    block: Block, kernels: Kernels, attention_launches: Floats, layout: Layout, instance: Instance, stack: Stack
) -> tuple[Floats, Floats]:
    """Seconds in which the host launches the forward and the backward pass of one microbatch, shape (n,) each."""
    experts = max((matmul.experts for matmul in block.matmuls), default=1)
    local = maximum(experts / layout.expert_parallel_degree, 1.0)
    launches = kernels.products + kernels.launches + attention_launches + kernels.expert_launches * local
    if layout.state_bytes.cast_bytes > 0:
        launches = launches + kernels.products + _WEIGHT_CASTS * (kernels.products - kernels.repeated_products)
    pace = gpu_constant("host_pace", instance.gpu)
    per_kernel = pace * stack.launch_share * constant("time.launch_seconds")
    collectives = (
        where(layout.tensor_parallel_degree > 1, block.all_reduces, 0)
        + where(layout.context_parallel_degree > 1, len(block.attentions), 0)
        + where((layout.expert_parallel_degree > 1) & (experts > 1), 2, 0)
    )
    exchanges = pace * constant("time.collective_launch_seconds") * collectives
    modules = pace * stack.module_share * constant("time.module_seconds")
    # A unit's parameters are gathered before, and freed after, each of its passes.
    units = pace * stack.unit_share * where(layout.shard_level == 3, constant("time.unit_seconds"), 0.0)
    # SMP v1 has checkpoints of its own.
    checkpointed = (layout.checkpoint_layers != 0) & (stack.collectives != "host")
    checkpoints = pace * stack.launch_share * where(checkpointed, constant("time.checkpoint_seconds"), 0.0)
    checkpoints = checkpoints / layout.checkpoint_period
    forward = launches * per_kernel + exchanges + units + modules + checkpoints
    backward = kernels.backward_launches * launches * per_kernel + exchanges + _UNIT_BACKWARD * units + 2 * modules
    return forward, backward


_UNIT_BACKWARD = 1.75
_PER_TENSOR = {"loop": 11.0, "foreach": 2.9, "fused": 1.2, "backward": 11.0}
"""Host time of Adam per parameter tensor, in launches of kernels. As a loop: decay, two averages of two operations,
root, quotient, sum, update, norm and scale (torch.optim.adamw, _single_tensor_adamw). ``foreach`` and ``fused`` launch
kernels for many tensors, and collect these one by one: 0.033 and 0.014 ms per tensor where the loop takes 0.125."""
_TENSORS_OF_NORMS = 4


def optimizer_form(job: Job, stack: Stack) -> str:
    """Form of the optimizer step: the job's, or that of its code."""
    return job.optimizer_step if job.optimizer_step != "auto" else stack.optimizer


def optimizer_host_seconds(model: Model, layout: Layout, instance: Instance, job: Job, stack: Stack) -> Floats:
    """Return the seconds in which the host launches the optimizer's kernels, a lower limit of the optimizer step.

    Parameters that FSDP shards are one tensor per unit. Megatron, DeepSpeed and SMP v1 update one flat buffer if they
    shard the optimizer's state.
    """
    form = optimizer_form(job, stack)
    kernels = [(group.count, group.block.separate) for group in model.groups]
    tensors = sum(n * (2 * (of.products - of.repeated_products) + _TENSORS_OF_NORMS) for n, of in kernels)
    of_units = where(layout.shard_level == 3, model.layer_count, 0)
    count = where(layout.shard_level == 0, tensors, of_units) / layout.pipeline_parallel_degree
    pace = gpu_constant("host_pace", instance.gpu)
    return count * _PER_TENSOR[form] * pace * constant("time.launch_seconds")


@dataclass(frozen=True)
class BlockSeconds:
    """One microbatch through one block, without communication, shape (n,) each."""

    forward: Floats
    backward: Floats
    core_attention: Floats
    """Part of `forward` that selective recomputation repeats."""
    attention: Floats
    """Kernels of attention in both passes, on the GPU."""
    products: Floats
    """Products of weights in both passes, on the GPU."""
    forward_of_host: Floats
    """`forward`, if the host's launches take longer than the kernels; else 0."""
    backward_of_host: Floats


def _unpacking_seconds(block: Block, layout: Layout, instance: Instance) -> Floats:
    """Return the seconds to dequantize a block's weights, once for every pass, shape (n,)."""
    state_bytes = layout.state_bytes
    if state_bytes.frozen_bytes is None or not state_bytes.unpacked:
        return 0.0
    packed = (block.parameters - block.unpacked_parameters) / layout.tensor_parallel_degree
    moved = (state_bytes.frozen_bytes + state_bytes.compute_bytes) * packed
    return moved / memory_bandwidth(instance)


def _elementwise_seconds(kernels: Kernels, layout: Layout, world: World, instance: Instance) -> Floats:
    """Return the seconds of norms, rotations, activation functions and residuals of a forward pass, shape (n,)."""
    tp = layout.tensor_parallel_degree
    # Autocast computes norms and the residual stream in fp32 (documentation of torch.amp).
    state = layout.state_bytes
    width = kernels.autocast_traffic if state.cast_bytes > 0 or state.fp32_inputs else 1.0
    elements = width * kernels.elements / where(layout.sequence_parallel, tp, 1) + kernels.split_elements / tp
    moved = constant("time.elementwise_passes") * elements * world.bytes_per_element * world.microbatch_tokens
    seconds: Floats = moved / memory_bandwidth(instance)
    return seconds


def _of_code(
    block: Block, attention_launches: Floats, layout: Layout, world: World, instance: Instance, stack: Stack
) -> tuple[Floats, ...]:
    """Element-wise seconds of a forward and of a backward pass, and those of the host, in the form of a stack."""
    kernels = block.fused if stack.elementwise == "fused" else block.separate
    if stack.fuses_adapters and block.with_fused_adapter is not None:
        kernels = block.with_fused_adapter
    moved = _elementwise_seconds(kernels, layout, world, instance)
    host = host_seconds(block, kernels, attention_launches, layout, instance, stack)
    return moved, kernels.backward_traffic * moved, *host


def _cast_seconds(block: Block, layout: Layout, world: World, instance: Instance, job: Job) -> tuple[Floats, Floats]:
    """Return the seconds to cast operands of products, in the forward and in the backward pass.

    Autocast makes a 16-bit copy of every fp32 weight, and an fp32 copy of its gradient. With fp8, the forward pass
    casts inputs and weights, the backward pass gradients of outputs. Each is read in 16 bits and written in 8, once
    more transposed for the other product (Transformer Engine documentation, FP8 primer). Code that keeps fp8 copies of
    weights casts them in the first microbatch only (``is_first_microbatch`` of Transformer Engine's modules, which
    Megatron-Core passes), unless sharded parameters are gathered again. With sequence parallelism, it casts its part of
    an operand before the others are gathered.
    """
    if layout.state_bytes.cast_bytes > 0 and layout.state_bytes.frozen_bytes is None:
        weights = 6.0 * block.parameters / layout.tensor_parallel_degree / memory_bandwidth(instance)
        return weights, weights
    if not (job.fp8 and instance.fp8_tflops):
        return 0.0, 0.0
    tp, tokens = layout.tensor_parallel_degree, world.microbatch_tokens
    moved: Floats = 4.0 * block.parameters / tp / maximum(1.0, layout.expert_parallel_degree)
    gathered: Floats = 1
    if stack_of(job, layout).divided.fp8_weight_bytes:
        moved = moved / where(layout.shard_level >= 3, 1, layout.microbatches)
        gathered = where(layout.sequence_parallel, tp, 1)
    gradients: Floats = 0.0
    for m in block.matmuls:
        rows = 4.0 * tokens * m.weights_per_token * m.rows_per_token
        moved = moved + rows * m.inputs / (tp if m.split == "row" else gathered)
        gradients = gradients + rows * m.outputs / (tp if m.split == "column" else gathered)
    rate = memory_bandwidth(instance) / constant("time.elementwise_passes")
    return moved / rate, gradients / rate


def block_seconds(block: Block, layout: Layout, world: World, instance: Instance, job: Job) -> BlockSeconds:
    """Seconds of one microbatch on one block: the longer of the GPU's work and of its launches by the host."""
    stack = stack_of(job, layout)
    attention = attention_seconds(block, layout, world, instance, job, stack)
    products = products_seconds(block.matmuls, layout, world, instance, job, stack)
    of_code = _of_code(block, attention.launches, layout, world, instance, stack)
    is_divided = layout.tensor_parallel_degree > 1
    if stack.divided_by and anywhere(is_divided):
        own = _of_code(block, attention.launches, layout, world, instance, stack.divided)
        of_code = tuple(where(is_divided, *pair) for pair in zip(own, of_code, strict=True))
    moved, moved_back, host_forward, host_backward = of_code
    # FSDP lets the host prepare two units ahead (``limit_all_gathers``). Units of an adapter's products have next to no
    # work on the GPU, which therefore waits for each.
    waited: Floats = 0.0
    if layout.state_bytes.adapter_units:
        pace = gpu_constant("host_pace", instance.gpu) * stack.unit_share
        waited = where(layout.shard_level == 3, pace * constant("time.unit_seconds") * block.adapter_products, 0.0)
    unpacking = _unpacking_seconds(block, layout, instance) + waited
    # A frozen weight has no gradient, so the backward pass has one product instead of two.
    passes = 1.0 if block.adapter_parameters else 2.0
    casts, gradient_casts = _cast_seconds(block, layout, world, instance, job)
    forward = products + unpacking + attention.forward + moved + casts
    backward = passes * products + unpacking + attention.backward + moved_back + gradient_casts
    return BlockSeconds(
        forward=maximum(forward, host_forward),
        backward=maximum(backward, host_backward),
        core_attention=attention.forward,
        attention=attention.forward + attention.backward,
        products=(1 + passes) * products,
        forward_of_host=where(host_forward > forward, host_forward, 0.0),
        backward_of_host=where(host_backward > backward, host_backward, 0.0),
    )


_LOGIT_BYTES = 16
"""Bytes that softmax and loss move per logit of the forward pass: fp32 copy, softmax, loss and gradient."""
_FUSED_LOGIT_BYTES = 6
"""The same of a fused loss, which reads the 16-bit logit twice and replaces it by its gradient."""


def head_seconds(
    model: Model, layout: Layout, world: World, instance: Instance, job: Job, shards: Floats
) -> tuple[Floats, Floats]:
    """Seconds of output projection, softmax and loss of one microbatch: (forward, backward), shape (n,) each."""
    if model.head.kind == "none":
        return 0.0, 0.0
    rows = head_rows(model, world)
    columns = model.head.outputs / shards
    inner = float(model.shape.hidden)
    product = product_seconds(rows, columns, inner, 1.0, instance, job, world.bytes_per_element)
    dense = 2 * rows * model.head.extra_matmul_parameters / (peak_flops(instance, job) * 0.5)
    fused = job.loss == "fused" or (job.loss == "plain" and stack_of(job, layout).loss == "fused")
    passes = (_FUSED_LOGIT_BYTES if fused else _LOGIT_BYTES) * rows * columns / memory_bandwidth(instance)
    backward = (1 if job.adapter is not None else 2) * (product + dense) + (0 if fused else 2 * passes)
    if computes_loss_in_parts(model, layout):
        backward += product  # of each part again
    return product + dense + passes, backward


@lru_cache(maxsize=256)
def model_flops_per_sample(model: Model, sequence_length: int, *, computed: bool = False) -> float:
    """Model FLOPs of one training sample: 6 per matrix parameter and token plus 12 a d s per attention and token.

    Recomputation is not counted (the convention of PaLM, arXiv 2204.02311, appendix B). Attention counts the full
    square, or with `computed` the part that a kernel cannot leave out.
    """
    forward = 0.0
    for group in model.groups:
        block = group.block
        scores = sum(
            2
            * (a.heads * a.head_dim * a.query_share)
            * (a.pairs_per_query(sequence_length) if computed else a.keys_per_query(sequence_length))
            for a in block.attentions
        )
        # Half of the backward pass computes gradients of weights. Frozen weights have none.
        products = sum(m.flops_per_token for m in block.matmuls) * (2 / 3 if block.adapter_parameters else 1)
        forward += group.count * sequence_length * (products + 2 * scores)
    rows = model.head.rows_per_token * sequence_length if model.head.per_token else 1
    if model.head.kind != "none":
        forward += 2 * rows * (model.shape.hidden * model.head.outputs + model.head.extra_matmul_parameters)
    return 3 * forward


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
    attention: Floats
    """Of the seconds of compute, those of kernels of attention."""
    products: Floats
    """Of the seconds of compute, those of products of weights."""
    of_host: Floats
    """Of the seconds of compute, those of blocks whose launches by the host take longer than their kernels."""

    @property
    def total(self) -> Floats:
        return self.first_half + self.second_half

    @property
    def first_half(self) -> Floats:
        """Seconds of the forward pass with its communication."""
        return self.forward + self.exchange_forward

    @property
    def second_half(self) -> Floats:
        """Seconds from the start of the backward pass, with recomputation, communication and accumulation."""
        return self.backward + self.recomputation + self.exchange_backward + self.accumulation


_OF_BLOCKS = (
    "forward", "backward", "recomputation", "exchange_forward", "exchange_backward", "attention", "products", "of_host",
)  # fmt: skip
"""Fields that are sums over the blocks of a stage."""


def _exchange_seconds(block: Block, cluster: Cluster, job: Job, layout: Layout, world: World) -> tuple[Floats, Floats]:
    """Return the seconds of communication in one (forward, backward) pass of a block.

    Tensor parallelism: all-reduces of the block's output, or with sequence parallelism an all-gather and a
    reduce-scatter of the same volume, of which Transformer Engine gathers in fp8 (its ``gather_along_first_dim`` with a
    quantizer). Context parallelism: an all-gather of keys and values; the backward pass also
    returns their gradients (Liu et al. 2023, arXiv 2310.01889, section 3). Expert parallelism: an all-to-all of the
    tokens to their experts and one back.
    """
    tokens = world.microbatch_tokens * world.bytes_per_element
    tp, cp, ep = layout.tensor_parallel_degree, layout.context_parallel_degree, layout.expert_parallel_degree
    seconds = block.all_reduces * all_reduce_seconds(cluster, block.hidden * tokens, tp, world.tensor_stride)
    if job.fp8 and stack_of(job, layout).divided.fp8_weight_bytes:
        seconds = where(layout.sequence_parallel, 0.75, 1.0) * seconds  # half are gathers, of 8 bits instead of 16
    gradients: Floats = 0.0
    if anywhere(cp > 1):
        keys = sum(2 * a.kv_heads * a.head_dim for a in block.attentions) / tp
        gradients = all_gather_seconds(cluster, keys * tokens * cp, cp, world.tensor_stride * tp)
        seconds = seconds + gradients
    experts = max((m.weights_per_token for m in block.matmuls if m.experts > 1), default=0)
    if experts and anywhere(ep > 1):
        moved = block.hidden * tokens / where(layout.sequence_parallel, tp, 1)
        if job.expert_dispatch == "per-node":
            # One copy per node, forwarded inside it, next to compute (DeepSeek-AI, DeepEP).
            nodes = minimum(Group.of(cluster, ep, world.data_stride).nodes, experts)
            share = constant("time.contention_across_nodes")
            seconds = seconds + 2 * share * all_to_all_seconds(cluster, nodes * moved, ep, world.data_stride)
        else:
            seconds = seconds + 2 * all_to_all_seconds(cluster, experts * moved, ep, world.data_stride)
    return seconds, seconds + gradients


def _block_passes(block: Block, cluster: Cluster, job: Job, layout: Layout, world: World) -> Passes:
    compute = block_seconds(block, layout, world, cluster.instance, job)
    forward_exchange, backward_exchange = _exchange_seconds(block, cluster, job, layout, world)
    full = layout.checkpoint_layers != 0
    core = where(layout.selective_recomputation & inverted(full), compute.core_attention, 0.0)
    # Stored outputs: those of attention, and of half of the matrix products.
    repeated = where(
        layout.keeps_products,
        (compute.forward - compute.core_attention) / 2,
        compute.forward / layout.checkpoint_period,
    )
    if stack_of(job, layout).overlaps_exchange:
        # Products and the exchanges of their operands run side by side, as with sharded parameters.
        share = where(layout.sequence_parallel, constant("time.contention_in_node"), 1.0)
        forward_exchange, backward_exchange = share * forward_exchange, share * backward_exchange
    return Passes(
        forward=compute.forward,
        backward=compute.backward,
        recomputation=where(full, repeated, core),
        # The next kernel needs the result of a collective, so the host's launches do not hide it.
        exchange_forward=forward_exchange,
        exchange_backward=backward_exchange + where(full, forward_exchange / layout.checkpoint_period, 0.0),
        accumulation=0.0,
        attention=compute.attention + where(full, compute.core_attention, core),
        products=compute.products,
        of_host=compute.backward_of_host + where(full, 2.0, 1.0) * compute.forward_of_host,
    )


def _passes_of_parts(
    model: Model, cluster: Cluster, job: Job, layout: Layout, world: World
) -> tuple[list[Passes], tuple[Floats, Floats]]:
    """Passes of a block of each group, and seconds of the head."""
    head = head_seconds(model, layout, world, cluster.instance, job, vocabulary_shards(model, layout))
    return [_block_passes(g.block, cluster, job, layout, world) for g in model.groups], head


@lru_cache(maxsize=4096)
def _passes_of_one(model: Model, cluster: Cluster, job: Job, plan: One) -> tuple[list[Passes], tuple[Floats, Floats]]:
    return _passes_of_parts(model, cluster, job, plan.layout, plan.world)


def stage_passes(
    model: Model,
    cluster: Cluster,
    job: Job,
    layout: Layout,
    world: World,
    degree: int,
    locals_: Sequence[LocalParameters],
) -> tuple[Passes, ...]:
    cast = layout.microbatches if job.fp8 else 1
    placed = (world.microbatch_samples, world.tensor_stride, world.data_stride, cast)
    single = one(layout, world, placed, of_blocks=True)
    if single is None:
        blocks, head = _passes_of_parts(model, cluster, job, layout, world)
    else:
        blocks, head = _passes_of_one(model, cluster, job, single)

    def of_stage(stage: Stage, local: LocalParameters) -> Passes:
        sums: dict[str, Floats] = dict.fromkeys(_OF_BLOCKS, 0.0)
        for count, block in zip(stage.block_counts, blocks, strict=True):
            if count:
                for name in _OF_BLOCKS:
                    sums[name] = sums[name] + count * getattr(block, name)
        if stage.last:
            sums["forward"] = sums["forward"] + head[0]
            sums["backward"] = sums["backward"] + head[1]
        return Passes(**sums, accumulation=_accumulation(cluster, job, layout, world, local))

    kinds = stage_kinds(model, degree)
    return tuple(of_stage(stage, local) for stage, local in zip(kinds, locals_, strict=True))


def _accumulation(cluster: Cluster, job: Job, layout: Layout, world: World, local: LocalParameters) -> Floats:
    """Return the seconds to add a microbatch's gradients to the accumulated ones. Both are read, one is written.

    On a single GPU, whose gradients are in no bucket of a reduction, the first microbatch's are stored as they are.
    Where the product of the gradient adds to the fp32 gradient itself (``gradient_accumulation_fusion`` of Megatron and
    Transformer Engine), the gradient is read and written once.
    """
    state = layout.state_bytes
    trained = trained_parameters(local, layout).total
    accumulated = where(layout.shard_level >= 2, owned_parameters(local, layout, world), trained)
    gradient_bytes = max(state.gradient_bytes, state.extra_gradient_bytes)
    moved = constant("time.gradient_accumulation") * (state.compute_bytes + 2 * gradient_bytes) * accumulated
    if stack_of(job, layout).accumulation == "fused" and gradient_bytes > state.compute_bytes:
        moved = 2 * gradient_bytes * accumulated
    seconds: Floats = moved / memory_bandwidth(cluster.instance)
    return seconds * (1 - 1 / layout.microbatches) if world.gpus == 1 else seconds
