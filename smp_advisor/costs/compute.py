"""Time of one block's passes on one GPU: matrix products, attention, memory-bound operations, kernel launches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from smp_advisor.costs.attention import attention_seconds
from smp_advisor.costs.constants import constant, gpu_constant
from smp_advisor.costs.host import HostSeconds, host_seconds
from smp_advisor.costs.products import product_seconds, products_seconds
from smp_advisor.costs.rates import memory_bandwidth, peak_flops
from smp_advisor.costs.stack import stack_of
from smp_advisor.elementwise import anywhere, maximum, where

if TYPE_CHECKING:
    from smp_advisor.cluster.instance import Instance
    from smp_advisor.costs.world import World
    from smp_advisor.elementwise import Floats
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.workload.block import Block
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.kernels import Kernels
    from smp_advisor.workload.model import Model
    from smp_advisor.workload.stack import Stack


__all__ = ["BlockSeconds", "block_seconds", "head_seconds", "model_flops_per_sample", "outside_seconds"]


@dataclass(frozen=True)
class BlockSeconds:
    """One microbatch through one block, without communication, shape (n,) each."""

    forward: Floats
    backward: Floats
    core_attention: Floats
    """Part of `forward` that selective recomputation repeats."""
    idle_forward: Floats
    """Part of `forward` in which the GPU waits for the host. Collectives of the block take place in it."""
    idle_backward: Floats


def _unpacking_seconds(block: Block, layout: Layout, instance: Instance) -> Floats:
    """Seconds to dequantize a block's weights, once for every pass, shape (n,)."""
    state_bytes = layout.state_bytes
    if state_bytes.frozen_bytes is None or state_bytes.frozen_bytes >= state_bytes.compute_bytes:
        return 0.0
    moved = (state_bytes.frozen_bytes + state_bytes.compute_bytes) * block.parameters / layout.tensor_parallel_degree
    return moved / memory_bandwidth(instance)


def _elementwise_seconds(kernels: Kernels, layout: Layout, world: World, instance: Instance) -> Floats:
    """Seconds of norms, rotations, activation functions and residuals of a forward pass, shape (n,)."""
    tp = layout.tensor_parallel_degree
    # Autocast computes norms and the residual stream in fp32 (documentation of torch.amp).
    width = 2.0 if layout.state_bytes.cast_bytes > 0 else 1.0
    elements = width * kernels.elements / where(layout.sequence_parallel, tp, 1) + kernels.split_elements / tp
    moved = constant("time.elementwise_passes") * elements * world.bytes_per_element * world.microbatch_tokens
    seconds: Floats = moved / memory_bandwidth(instance)
    return seconds


def _of_code(
    block: Block, attention_launches: Floats, layout: Layout, world: World, instance: Instance, stack: Stack
) -> tuple[Floats, Floats, HostSeconds]:
    """Element-wise seconds of a forward and of a backward pass, and seconds of the host, in the form of a stack."""
    kernels = block.fused if stack.elementwise == "fused" else block.separate
    moved = _elementwise_seconds(kernels, layout, world, instance)
    host = host_seconds(block, kernels, attention_launches, layout, instance, stack)
    return moved, kernels.backward_traffic * moved, host


def _cast_seconds(block: Block, layout: Layout, world: World, instance: Instance, job: Job) -> tuple[Floats, Floats]:
    """Seconds to cast operands of products, in the forward and in the backward pass.

    Autocast makes a 16-bit copy of every fp32 weight, and an fp32 copy of its gradient. With fp8, the forward pass
    casts inputs and weights, the backward pass gradients of outputs. Each is read in 16 bits and written in 8, once
    more transposed for the other product (Transformer Engine documentation, FP8 primer).
    """
    if layout.state_bytes.cast_bytes > 0 and layout.state_bytes.frozen_bytes is None:
        weights = 6.0 * block.parameters / layout.tensor_parallel_degree / memory_bandwidth(instance)
        return weights, weights
    if not (job.fp8 and instance.fp8_tflops):
        return 0.0, 0.0
    tp, tokens = layout.tensor_parallel_degree, world.microbatch_tokens
    moved: Floats = 4.0 * block.parameters / tp / maximum(1.0, layout.expert_parallel_degree)
    gradients: Floats = 0.0
    for m in block.matmuls:
        rows = 4.0 * tokens * m.weights_per_token * m.rows_per_token
        moved = moved + rows * m.inputs / (tp if m.split == "row" else 1)
        gradients = gradients + rows * m.outputs / (tp if m.split == "column" else 1)
    rate = memory_bandwidth(instance) / constant("time.elementwise_passes")
    return moved / rate, gradients / rate


def block_seconds(block: Block, layout: Layout, world: World, instance: Instance, job: Job) -> BlockSeconds:
    """Seconds of one microbatch on one block: the longer of the GPU's work and of its launches by the host.

    The backward pass has two products for each of the forward pass.
    """
    stack = stack_of(job, layout)
    attention = attention_seconds(block, layout, world, instance, job, stack)
    products = products_seconds(block.matmuls, layout, world, instance, job, stack)
    moved, moved_back, host = _of_code(block, attention.launches, layout, world, instance, stack)
    is_divided = layout.tensor_parallel_degree > 1
    if stack.divided_by and anywhere(is_divided):
        own = _of_code(block, attention.launches, layout, world, instance, stack.divided)
        moved, moved_back, own_host = where(is_divided, own[0], moved), where(is_divided, own[1], moved_back), own[2]
        host = HostSeconds(
            where(is_divided, own_host.forward, host.forward), where(is_divided, own_host.backward, host.backward)
        )
    unpacking = _unpacking_seconds(block, layout, instance)
    # A frozen weight has no gradient, so the backward pass has one product instead of two.
    passes = 1.0 if block.adapter_parameters else 2.0
    casts, gradient_casts = _cast_seconds(block, layout, world, instance, job)
    forward = products + unpacking + attention.forward + moved + casts
    backward = passes * products + unpacking + attention.backward + moved_back + gradient_casts
    return BlockSeconds(
        forward=maximum(forward, host.forward),
        backward=maximum(backward, host.backward),
        core_attention=attention.forward,
        idle_forward=maximum(host.forward - forward, 0.0),
        idle_backward=maximum(host.backward - backward, 0.0),
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
    rows = world.microbatch_tokens if model.head.per_token else world.microbatch_samples
    columns = model.head.outputs / shards
    inner = float(model.shape.hidden)
    product = product_seconds(rows, columns, inner, 1.0, instance, job, world.bytes_per_element)
    dense = 2 * rows * model.head.extra_matmul_parameters / (peak_flops(instance, job) * 0.5)
    fused = job.loss == "fused" or (job.loss == "plain" and stack_of(job, layout).loss == "fused")
    passes = (_FUSED_LOGIT_BYTES if fused else _LOGIT_BYTES) * rows * columns / memory_bandwidth(instance)
    backward = (1 if job.adapter is not None else 2) * (product + dense) + (0 if fused else 2 * passes)
    return product + dense + passes, backward


def outside_seconds(model: Model, world: World, instance: Instance, job: Job) -> Floats:
    """Seconds of one microbatch's forward pass outside blocks and head, shape (n,); backward takes twice that."""
    efficiency = gpu_constant("matmul_efficiency", instance.gpu)
    arithmetic = model.outside_flops / (peak_flops(instance, job) * efficiency)
    # Every saved element is written once and read once.
    moved = 2 * world.bytes_per_element * model.outside_elements / memory_bandwidth(instance)
    seconds: Floats = (arithmetic + moved) * world.microbatch_tokens
    return seconds


@lru_cache(maxsize=256)
def model_flops_per_sample(model: Model, sequence_length: int) -> float:
    """Model FLOPs of one training sample: 6 per matrix parameter and token plus 12 a d s per attention and token.

    Recomputation is not counted (the convention of PaLM, arXiv 2204.02311, appendix B). Attention counts the full
    square.
    """
    forward = 0.0
    for group in model.groups:
        block = group.block
        scores = sum(2 * a.heads * a.head_dim * a.keys_per_query(sequence_length) for a in block.attentions)
        # Half of the backward pass computes gradients of weights. Frozen weights have none.
        products = sum(m.flops_per_token for m in block.matmuls) * (2 / 3 if block.adapter_parameters else 1)
        forward += group.count * sequence_length * (products + 2 * scores)
    forward += sequence_length * model.outside_flops
    rows = sequence_length if model.head.per_token else 1
    if model.head.kind != "none":
        forward += 2 * rows * (model.shape.hidden * model.head.outputs + model.head.extra_matmul_parameters)
    return 3 * forward
