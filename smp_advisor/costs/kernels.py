"""Time of kernels on one GPU: matrix products, and attention with scores, softmax and the product with the values.

``data/attention.csv`` has the TFLOPS that Shah et al. 2024 (arXiv 2407.08608, figures 5 and 6) measured on an H100 SXM5
with 16,384 tokens per kernel, read on 2026-11-22. The cost model uses their ratios. The level, the rate without a mask
at the longest sequence and 128 elements per head as a share of the GPU's peak, is a constant per kernel and GPU.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from smp_advisor.core.elementwise import anywhere, ceil, common_divisor, inverted, maximum, minimum, where
from smp_advisor.core.files import rows
from smp_advisor.costs.constants import constant, gpu_constant, has_gpu_constant, memory_bandwidth, peak_flops

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.cluster.table import Instance
    from smp_advisor.core.elementwise import Floats
    from smp_advisor.costs.world import World
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.workload.block import Attention, Block, Matmul
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.stack import Stack

    Kernel = Literal["flash-1", "flash-2", "flash-3", "cudnn"]
    Pass = Literal["forward", "backward"]


_TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.9), (64, 128, 0.75), (64, 64, 0.6))
"""Output tiles of cuBLAS kernels (rows, columns) and their rate relative to the largest."""
_HEIGHTS, _WIDTHS = ({tile[side] for tile in _TILES} for side in (0, 1))


def _share_of_peak(rows: Floats, columns: Floats, inner: Floats, copies: Floats | float, gpu: str) -> Floats:
    """Rate of products of a shape relative to very large products, shape (n,).

    The output consists of tiles, which run in waves of one tile per multiprocessor. The last wave may be nearly empty.
    The best of cuBLAS's kernels counts (NVIDIA, Matrix Multiplication Background User's Guide, sections on tile and
    wave quantization). A short inner dimension does not amortize the start of a tile.
    """
    processors = gpu_constant("multiprocessors", gpu)
    smoothing = constant("time.wave_quantization")
    down = {height: ceil(rows / height) for height in _HEIGHTS}
    across = {width: ceil(columns / width) for width in _WIDTHS}
    per_processor = copies / processors
    least: Floats = math.inf
    for height, width, rate in _TILES:
        waves = down[height] * across[width] * per_processor
        # Concurrent kernels and uneven clocks reduce the effect of the last wave.
        slots = (1 - smoothing) * waves + smoothing * ceil(waves)
        least = minimum(least, height * width / rate * slots)
    useful = rows * columns * per_processor * inner
    result: Floats = useful / (least * (inner + constant("time.matmul_half_inner")))
    # Tensor cores read 16 bytes (8 elements) at a time. Full lines of 128 bytes are fastest.
    shortest = common_divisor(common_divisor(inner, columns), 64)
    lines = where(shortest >= 64, 1.0, where(shortest >= 8, constant("time.part_aligned"), constant("time.unaligned")))
    return result * lines


def product_seconds(
    rows: Floats,
    columns: Floats,
    inner: Floats,
    copies: Floats | float,
    instance: Instance,
    job: Job,
    element: int,
    *,
    weights: bool = False,
) -> Floats:
    """Roofline of `copies` products of (rows x inner) by (inner x columns): the slower of arithmetic and memory."""
    if job.precision == "fp32":  # vector units, which have neither tensor cores' tiles nor their alignment
        efficiency: Floats | float = gpu_constant("fp32_matmul_efficiency", instance.gpu)
    else:
        efficiency = gpu_constant("matmul_efficiency", instance.gpu) * _share_of_peak(
            rows, columns, inner, copies, instance.gpu
        )
        if weights and job.fp8 and instance.fp8_tflops:
            efficiency = efficiency * gpu_constant("fp8_matmul_share", instance.gpu)
    arithmetic = 2 * rows * columns * inner / (peak_flops(instance, job, products_of_weights=weights) * efficiency)
    traffic = element * (rows * inner + inner * columns + rows * columns)
    return copies * maximum(arithmetic, traffic / memory_bandwidth(instance))


def products_seconds(
    matmuls: tuple[Matmul, ...], layout: Layout, world: World, instance: Instance, job: Job, stack: Stack
) -> Floats:
    tp, ep = layout.tensor_parallel_degree, layout.expert_parallel_degree
    total: Floats = 0.0
    for m in matmuls:
        columns = m.outputs / (tp if m.split == "column" else 1)
        inner = m.inputs / (tp if m.split == "row" else 1)
        # Expert parallelism: a GPU has fewer experts, and each processes the tokens of more GPUs.
        experts = maximum(m.experts / ep, 1.0)
        rows = world.microbatch_tokens * (m.weights_per_token * m.rows_per_token) / experts
        # Experts of a loop run one after the other, each with waves of its own.
        together = 1.0 if stack.experts == "loop" else experts
        seconds = product_seconds(rows, columns, inner, together, instance, job, world.bytes_per_element, weights=True)
        total = total + experts / together * seconds
    return total


_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
_REFERENCE = (128, False, "forward")


@cache
def _measured() -> Mapping[tuple[str, int, bool, str], tuple[float, ...]]:
    """TFLOPS at `_LENGTHS` by kernel, width, mask and pass."""
    return {
        (row["kernel"], int(row["head_dim"]), row["causal"] == "yes", row["pass"]): tuple(
            float(row[str(length)]) for length in _LENGTHS
        )
        for row in rows("smp_advisor.costs", "data/attention.csv")
    }


@cache
def _relative(kernel: str, head_dim: int, *, causal: bool, of: str, length: int) -> float:
    """Rate relative to the kernel's reference, interpolated in the logarithms of width and length."""
    table = _measured()
    if kernel == "flash-1":
        kernel = "flash-2"  # no curve of the first version was published for this GPU
    reference = table[kernel, *_REFERENCE][-1]
    if (kernel, 128, causal, of) not in table:
        # A causal backward pass was not published: its mask costs it the share that it costs the forward pass.
        unmasked = _relative(kernel, head_dim, causal=False, of=of, length=length)
        masked, full = (_relative(kernel, head_dim, causal=mask, of="forward", length=length) for mask in (True, False))
        return unmasked * masked / full
    widths = sorted(width for name, width, mask, which in table if (name, mask, which) == (kernel, causal, of))
    # Below the shortest measured length, the rate falls with the square root of the length.
    short, at = math.sqrt(min(length / _LENGTHS[0], 1.0)), np.log2(max(length, 1))
    rates = [float(np.interp(at, np.log2(_LENGTHS), table[kernel, width, causal, of])) * short for width in widths]
    return float(np.interp(np.log2(max(head_dim, 1)), np.log2(widths), rates)) / reference


MOST_OF_PEAK = 0.95
"""Share of the dense peak that no kernel exceeds."""


def share_of_peak(kernel: Kernel, gpu: str, head_dim: int, length: int, *, causal: bool, of: Pass) -> Floats:
    name = f"{kernel.replace('-', '_')}_efficiency"
    if kernel == "flash-3" and not has_gpu_constant(name, gpu):
        kernel, name = "flash-2", "flash_2_efficiency"  # it exists for Hopper only
    return minimum(
        gpu_constant(name, gpu) * _relative(kernel, head_dim, causal=causal, of=of, length=length), MOST_OF_PEAK
    )


_LAUNCHES = {"separate": 10, "fused-softmax": 6, "fused": 2}
"""Kernels of the forward pass. Separate: two products, three copies of queries, keys and values, scale, mask, softmax,
dropout, and the copy that joins the heads (transformers, eager_attention_forward). Fused softmax: scale, mask and
softmax are one, and heads need no copies (Megatron-LM, DotProductAttention). Fused: the kernel and one for its
statistics."""


class AttentionSeconds(NamedTuple):
    """Seconds of one microbatch, and kernels, shape (n,) each."""

    forward: Floats
    backward: Floats
    launches: Floats
    """Of the forward pass."""


_NO_ATTENTION = AttentionSeconds(0.0, 0.0, 0.0)


def attention_seconds(
    block: Block, layout: Layout, world: World, instance: Instance, job: Job, stack: Stack
) -> AttentionSeconds:
    every = [_seconds(attention, layout, world, instance, job, stack) for attention in block.attentions]
    return AttentionSeconds(*(sum(of, 0.0) for of in zip(*every, strict=True))) if every else _NO_ATTENTION


def _seconds(
    attention: Attention, layout: Layout, world: World, instance: Instance, job: Job, stack: Stack
) -> AttentionSeconds:
    if job.attention != "eager" and attention.fusible:
        return _fused(attention, layout, world, instance, job, stack)
    rows = attention.query_share * world.sequence_length / layout.context_parallel_degree
    keys, width = float(attention.keys_per_query(world.sequence_length)), float(attention.head_dim)
    copies = attention.heads / layout.tensor_parallel_degree * world.microbatch_samples
    # Queries with keys, and scores with values.
    products = product_seconds(rows, keys, width, copies, instance, job, world.bytes_per_element)
    products = products + product_seconds(rows, width, keys, copies, instance, job, world.bytes_per_element)
    divided = layout.tensor_parallel_degree > 1
    if not anywhere(divided):
        return _stored(attention, layout, world, instance, stack.eager, products)
    # Layers that tensor parallelism divides are the library's own, which have a fused form of every attention.
    own = (
        _stored(attention, layout, world, instance, stack.divided.eager, products)
        if job.attention == "eager"
        else _fused(attention, layout, world, instance, job, stack.divided)
    )
    if not anywhere(inverted(divided)):
        return own
    stored = _stored(attention, layout, world, instance, stack.eager, products)
    return AttentionSeconds(*(where(divided, *pair) for pair in zip(own, stored, strict=True)))


def fused_kernel(job: Job, layout: Layout, stack: Stack) -> Kernel:
    """Kernel of fused attention: the job's, or that of its code. The memory-efficient one is as fast as the first."""
    if job.attention_kernel == "memory-efficient":
        return "flash-1"
    if job.attention_kernel != "auto":
        return job.attention_kernel
    return "cudnn" if layout.cudnn_attention else stack.fused


def _fused(
    attention: Attention, layout: Layout, world: World, instance: Instance, job: Job, stack: Stack
) -> AttentionSeconds:
    """Seconds of one fused kernel's arithmetic; five products for two in the backward pass (arXiv 2307.08691)."""
    keys = attention.keys_per_query(world.sequence_length)
    reach, pairs = min(attention.window or keys, keys), attention.pairs_per_query(world.sequence_length)
    queries = attention.query_share * world.microbatch_tokens
    flops = 4 * attention.heads / layout.tensor_parallel_degree * attention.head_dim * queries * pairs
    peak = peak_flops(instance, job)

    def rate(kernel_stack: Stack, *, backward: bool) -> Floats:
        share = share_of_peak(
            fused_kernel(job, layout, kernel_stack),
            instance.gpu,
            attention.head_dim,
            reach,
            causal=attention.causal,
            of="backward" if backward else "forward",
        )
        return peak * share

    forward, backward = (
        flops
        / (
            where(layout.tensor_parallel_degree > 1, rate(stack.divided, backward=of), rate(stack, backward=of))
            if stack.divided_by
            else rate(stack, backward=of)
        )
        for of in (False, True)
    )
    return AttentionSeconds(forward, 2.5 * backward, _LAUNCHES["fused"])


def _stored(
    attention: Attention, layout: Layout, world: World, instance: Instance, kernels: str, products: Floats
) -> AttentionSeconds:
    """Return the seconds of two products and of the element-wise operations on the scores between them."""
    heads = attention.heads / layout.tensor_parallel_degree
    keys = attention.keys_per_query(world.sequence_length)
    queries = attention.query_share * world.microbatch_tokens
    scores = heads * queries * keys * world.bytes_per_element
    # The products write and read the scores. Fused, scale, mask and softmax read and write them once; as separate
    # operations, scale and mask do so, too, and a softmax in fp32 writes 4 bytes and casts them back.
    passes = 4.0 if kernels == "fused-softmax" else 2 + 2 + 2 + (6 if attention.scores_in_fp32 else 2)
    passes += 2.5 if attention.dropout else 0.0
    moved = constant("time.score_passes") * passes * scores
    if kernels == "separate":
        # Queries, keys and values of every head are copied for the product, and the heads are joined after it.
        moved = moved + 8 * heads * attention.head_dim * queries * world.bytes_per_element
    seconds = moved / memory_bandwidth(instance) + products
    return AttentionSeconds(seconds, 2 * seconds, _LAUNCHES[kernels])
