"""Time of one block's passes on one GPU: matrix products, attention, memory-bound operations, kernel launches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smp_advisor.costs.constants import constant, fp32_peak_tflops, gpu_constant
from smp_advisor.elementwise import ceil, common_divisor, maximum, where

if TYPE_CHECKING:
    from smp_advisor.cluster.instance import Instance
    from smp_advisor.costs.world import World
    from smp_advisor.elementwise import Floats
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.workload.block import Attention, Block, Matmul
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model


__all__ = [
    "BlockSeconds",
    "block_seconds",
    "head_seconds",
    "memory_bandwidth",
    "model_flops_per_sample",
    "outside_seconds",
    "peak_flops",
]


@dataclass(frozen=True)
class BlockSeconds:
    """One microbatch through one block, without communication, shape (n,) each."""

    forward: Floats
    backward: Floats
    core_attention: Floats
    """Part of `forward` that selective recomputation repeats."""


def peak_flops(instance: Instance, job: Job, *, products_of_weights: bool = False) -> float:
    """Dense peak of one GPU for the job's precision, FLOP/s.

    Parameters
    ----------
    products_of_weights
        Whether the peak is that of products of weights, which use fp8 with `Job.fp8`. Attention and utilization use 16
        bits.
    """
    if products_of_weights and job.fp8 and instance.fp8_tflops:
        return instance.fp8_tflops * 1e12
    if job.precision == "fp32":
        return fp32_peak_tflops(instance.gpu, instance.peak_tflops) * 1e12
    return instance.peak_tflops * 1e12


def memory_bandwidth(instance: Instance) -> float:
    """Bytes per second that element-wise kernels move."""
    return instance.hbm_gb_per_s * 1e9 * constant("time.memory_efficiency")


_TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.9), (64, 128, 0.75), (64, 64, 0.6))
"""Output tiles of cuBLAS kernels (rows, columns) and their rate relative to the largest."""


def _share_of_peak(rows: Floats, columns: Floats, inner: Floats, copies: Floats | float, gpu: str) -> Floats:
    """Rate of products of a shape relative to very large products, shape (n,).

    The output consists of tiles, which run in waves of one tile per multiprocessor. The last wave may be nearly empty.
    The best of cuBLAS's kernels counts (NVIDIA, Matrix Multiplication Background User's Guide, sections on tile and
    wave quantization). A short inner dimension does not amortize the start of a tile.
    """
    processors = gpu_constant("multiprocessors", gpu)
    smoothing = constant("time.wave_quantization")
    best: Floats = 0.0
    for height, width, rate in _TILES:
        tiles = ceil(rows / height) * ceil(columns / width)
        waves = tiles * copies / processors
        # Concurrent kernels and uneven clocks reduce the effect of the last wave.
        used = rows * columns / (tiles * height * width) * waves / (waves + smoothing * (ceil(waves) - waves))
        best = maximum(best, rate * used)
    result: Floats = best * inner / (inner + constant("time.matmul_half_inner"))
    # Tensor cores read 16 bytes (8 elements) at a time. Full lines of 128 bytes are fastest.
    shortest = common_divisor(common_divisor(inner, columns), 64)
    lines = where(shortest >= 64, 1.0, where(shortest >= 8, constant("time.part_aligned"), constant("time.unaligned")))
    return result * lines


def _product_seconds(
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
    efficiency = gpu_constant("matmul_efficiency", instance.gpu) * _share_of_peak(
        rows, columns, inner, copies, instance.gpu
    )
    arithmetic = 2 * rows * columns * inner / (peak_flops(instance, job, products_of_weights=weights) * efficiency)
    traffic = element * (rows * inner + inner * columns + rows * columns)
    return copies * maximum(arithmetic, traffic / memory_bandwidth(instance))


def _matmuls_seconds(matmuls: tuple[Matmul, ...], layout: Layout, world: World, instance: Instance, job: Job) -> Floats:
    """Seconds of all products of weights of a block."""
    tp, ep = layout.tensor_parallel_degree, layout.expert_parallel_degree
    total: Floats = 0.0
    for m in matmuls:
        columns = m.outputs / (tp if m.split == "column" else 1)
        inner = m.inputs / (tp if m.split == "row" else 1)
        # Expert parallelism: a GPU has fewer experts, and each processes the tokens of more GPUs.
        experts = maximum(m.experts / ep, 1.0)
        rows = world.microbatch_tokens * (m.weights_per_token * m.rows_per_token) / experts
        total = total + _product_seconds(
            rows, columns, inner, experts, instance, job, world.bytes_per_element, weights=True
        )
    return total


def _attention_seconds(block: Block, layout: Layout, world: World, instance: Instance, job: Job) -> Floats:
    """Seconds of scores, softmax and the product with the values."""
    tp = layout.tensor_parallel_degree
    total: Floats = 0.0
    for attention in block.attentions:
        if job.attention == "eager":
            total = total + _eager_seconds(attention, layout, world, instance, job)
        elif attention.fusible:
            total = total + _fused_seconds(attention, layout, world, instance, job)
        else:
            # Only the library's own layers, used under tensor parallelism, have a fused form.
            total = total + where(
                tp == 1,
                _eager_seconds(attention, layout, world, instance, job),
                _fused_seconds(attention, layout, world, instance, job),
            )
    return total


def _fused_seconds(attention: Attention, layout: Layout, world: World, instance: Instance, job: Job) -> Floats:
    """Seconds of one fused kernel, from its arithmetic only."""
    keys = attention.keys_per_query(world.sequence_length)
    # A causal kernel computes half of the square. A window limits it to a band.
    reach = min(attention.window or keys, keys)
    pairs = reach * (1 - reach / (2 * keys)) if attention.causal else float(reach)
    flops = 4 * attention.heads / layout.tensor_parallel_degree * attention.head_dim * world.microbatch_tokens * pairs
    seconds: Floats = flops / (peak_flops(instance, job) * gpu_constant("fused_attention_efficiency", instance.gpu))
    return seconds


def _eager_seconds(attention: Attention, layout: Layout, world: World, instance: Instance, job: Job) -> Floats:
    """Seconds of two products and of the element-wise operations on the scores between them."""
    heads = attention.heads / layout.tensor_parallel_degree
    rows = world.sequence_length / layout.context_parallel_degree
    keys = float(attention.keys_per_query(world.sequence_length))
    width = float(attention.head_dim)
    copies = heads * world.microbatch_samples
    scores = heads * world.microbatch_tokens * keys * world.bytes_per_element
    seconds: Floats = constant("time.eager_score_passes") * scores / memory_bandwidth(instance)
    for columns, inner in ((keys, width), (width, keys)):
        seconds = seconds + _product_seconds(rows, columns, inner, copies, instance, job, world.bytes_per_element)
    return seconds


def _unpacking_seconds(block: Block, layout: Layout, instance: Instance) -> Floats:
    """Seconds to dequantize a block's weights, once for every pass, shape (n,)."""
    state_bytes = layout.state_bytes
    if state_bytes.frozen_bytes is None or state_bytes.frozen_bytes >= state_bytes.compute_bytes:
        return 0.0
    moved = (state_bytes.frozen_bytes + state_bytes.compute_bytes) * block.parameters / layout.tensor_parallel_degree
    return moved / memory_bandwidth(instance)


def block_seconds(block: Block, layout: Layout, world: World, instance: Instance, job: Job) -> BlockSeconds:
    """Seconds of one microbatch on one block.

    The backward pass has two products for each of the forward pass. A fused attention kernel recomputes its scores
    there and has five products for two (Dao 2023, arXiv 2307.08691).
    """
    tp = layout.tensor_parallel_degree
    attention = _attention_seconds(block, layout, world, instance, job)
    products = _matmuls_seconds(block.matmuls, layout, world, instance, job)
    # The library's fused layers replace the model's own activation function under tensor parallelism.
    unfused = where(tp == 1, block.unfused_split_traffic_elements, 0.0)
    replicated = block.traffic_elements / where(layout.sequence_parallel, tp, 1)
    elements = replicated + (block.split_traffic_elements + unfused) / tp
    moved = constant("time.elementwise_share") * elements * world.bytes_per_element * world.microbatch_tokens
    moved = moved / memory_bandwidth(instance)
    launch = constant("time.launch_seconds_per_block")
    unpacking = _unpacking_seconds(block, layout, instance)
    # A frozen weight has no gradient, so the backward pass has one product instead of two.
    passes = 1.0 if block.adapter_parameters else 2.0
    fused = job.attention == "fused" and all(attention.fusible for attention in block.attentions)
    backward_share = 2.5 / gpu_constant("attention_backward_share", instance.gpu) if fused else 2.0
    return BlockSeconds(
        forward=maximum(products + unpacking + attention + moved, launch),
        backward=maximum(passes * products + unpacking + 2 * moved + backward_share * attention, 2 * launch),
        core_attention=attention,
    )


def head_seconds(model: Model, world: World, instance: Instance, job: Job, shards: Floats) -> tuple[Floats, Floats]:
    """Seconds of output projection, softmax and loss of one microbatch: (forward, backward), shape (n,) each."""
    if model.head.kind == "none":
        return 0.0, 0.0
    rows = world.microbatch_tokens if model.head.per_token else world.microbatch_samples
    columns = model.head.outputs / shards
    inner = float(model.shape.hidden)
    product = _product_seconds(rows, columns, inner, 1.0, instance, job, world.bytes_per_element)
    dense = 2 * rows * model.head.extra_matmul_parameters / (peak_flops(instance, job) * 0.5)
    # Logits are read and written about four times in fp32: copy, softmax, loss, gradient.
    passes = 4 * 4 * rows * columns / memory_bandwidth(instance)
    backward = (1 if job.adapter is not None else 2) * (product + dense) + 2 * passes
    return product + dense + passes, backward


def outside_seconds(model: Model, world: World, instance: Instance, job: Job) -> Floats:
    """Seconds of one microbatch's forward pass outside blocks and head, shape (n,); backward takes twice that."""
    efficiency = gpu_constant("matmul_efficiency", instance.gpu)
    arithmetic = model.outside_flops / (peak_flops(instance, job) * efficiency)
    # Every saved element is written once and read once.
    moved = 2 * world.bytes_per_element * model.outside_elements / memory_bandwidth(instance)
    seconds: Floats = (arithmetic + moved) * world.microbatch_tokens
    return seconds


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
