"""Time of one block's passes on one GPU: matrix products, attention, memory-bound work, kernel launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smp_advisor.costs.constants import constant, fp32_peak_tflops

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from smp_advisor.cluster.instance import Instance
    from smp_advisor.costs.layout import Layout
    from smp_advisor.costs.world import World
    from smp_advisor.workload.block import Block, Matmul
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

    Floats = NDArray[np.float64]

__all__ = ["block_forward_seconds", "head_forward_seconds", "model_flops_per_sample", "peak_flops"]


def peak_flops(instance: Instance, job: Job) -> float:
    """Dense peak of one GPU for the job's precision, FLOP/s."""
    if job.precision == "fp32":
        return fp32_peak_tflops(instance.gpu, instance.peak_tflops) * 1e12
    return instance.peak_tflops * 1e12


def _efficiency(rows: Floats, columns: Floats, inner: Floats) -> Floats:
    """Share of peak of a (rows x inner) by (inner x columns) product: each dimension saturates like d / (d + d0)."""
    half = constant("time.matmul_half_dimension")
    saturation = rows / (rows + half) * columns / (columns + half) * inner / (inner + half)
    return constant("time.matmul_efficiency") * saturation


def _product_seconds(
    rows: Floats, columns: Floats, inner: Floats, copies: Floats | float, instance: Instance, job: Job, element: int
) -> Floats:
    """Roofline of `copies` equal products: the slower of arithmetic and memory."""
    flops = 2 * rows * columns * inner
    arithmetic = flops / (peak_flops(instance, job) * _efficiency(rows, columns, inner))
    traffic = element * (rows * inner + inner * columns + rows * columns)
    memory = traffic / (instance.hbm_gb_per_s * 1e9 * constant("time.memory_efficiency"))
    return copies * np.maximum(arithmetic, memory)


def _matmul_seconds(matmul: Matmul, tp: Floats, world: World, instance: Instance, job: Job) -> Floats:
    columns = matmul.outputs / np.where(matmul.split == "column", tp, 1.0)
    inner = matmul.inputs / np.where(matmul.split == "row", tp, 1.0)
    rows = world.microbatch_tokens * matmul.weights_per_token / matmul.experts
    return _product_seconds(rows, columns, inner, matmul.experts, instance, job, world.bytes_per_element)


def _attention_seconds(block: Block, tp: Floats, world: World, instance: Instance, job: Job) -> Floats:
    total = np.zeros(len(tp))
    bandwidth = instance.hbm_gb_per_s * 1e9 * constant("time.memory_efficiency")
    for attention in block.attentions:
        heads = attention.heads / tp
        keys = attention.keys_per_query(world.sequence_length)
        if job.attention == "fused":
            # A causal kernel computes half of the square; a window, its band.
            reach = min(attention.window or keys, keys)
            pairs = reach * (1 - reach / (2 * keys)) if attention.causal else float(reach)
            flops = 4 * heads * attention.head_dim * world.microbatch_tokens * pairs
            total = total + flops / (peak_flops(instance, job) * constant("time.fused_attention_efficiency"))
            continue
        rows = np.full(len(tp), float(world.sequence_length))
        width = np.full(len(tp), float(attention.head_dim))
        copies = heads * world.microbatch_samples
        for columns, inner in ((np.full(len(tp), float(keys)), width), (width, np.full(len(tp), float(keys)))):
            total = total + _product_seconds(rows, columns, inner, copies, instance, job, world.bytes_per_element)
        scores = heads * world.microbatch_tokens * keys * world.bytes_per_element
        total = total + constant("time.eager_score_passes") * scores / bandwidth
    return total


def block_forward_seconds(block: Block, layout: Layout, world: World, instance: Instance, job: Job) -> Floats:
    """One forward pass of one microbatch through one block, without communication, shape (n,)."""
    tp = layout.tensor_parallel_degree.astype(np.float64)
    total = _attention_seconds(block, tp, world, instance, job)
    for matmul in block.matmuls:
        total = total + _matmul_seconds(matmul, tp, world, instance, job)
    # The library's fused layers replace the model's own activation function under tensor parallelism.
    unfused = np.where(tp == 1, block.unfused_split_traffic_elements, 0.0)
    elements = block.traffic_elements + (block.split_traffic_elements + unfused) / tp
    bandwidth = instance.hbm_gb_per_s * 1e9 * constant("time.memory_efficiency")
    total = total + elements * world.bytes_per_element * world.microbatch_tokens / bandwidth
    return np.maximum(total, constant("time.launch_seconds_per_block"))


def head_forward_seconds(
    model: Model, layout: Layout, world: World, instance: Instance, job: Job, shards: Floats
) -> Floats:
    """Output projection, softmax and loss of one microbatch on the last stage, shape (n,)."""
    if model.head.kind == "none":
        return np.zeros(len(layout))
    rows = world.microbatch_tokens if model.head.per_token else world.microbatch_samples
    columns = model.head.outputs / shards
    inner = np.full(len(layout), float(model.shape.hidden))
    element = world.bytes_per_element
    product = _product_seconds(rows, columns, inner, 1.0, instance, job, element)
    # Logits are read and written about four times in fp32: copy, softmax, loss, gradient.
    bandwidth = instance.hbm_gb_per_s * 1e9 * constant("time.memory_efficiency")
    dense = 2 * rows * model.head.extra_matmul_parameters / (peak_flops(instance, job) * 0.5)
    return product + dense + 4 * 4 * rows * columns / bandwidth


def model_flops_per_sample(model: Model, sequence_length: int) -> float:
    """Model FLOPs of one training sample: 6 per matrix parameter and token plus 12 a d s per attention and token.

    Recomputation is not counted (the convention of PaLM, arXiv 2204.02311, appendix B); attention counts the full
    square.
    """
    forward = 0.0
    for group in model.groups:
        block = group.block
        matrices = sum(m.inputs * m.outputs * m.weights_per_token for m in block.matmuls)
        scores = sum(2 * a.heads * a.head_dim * a.keys_per_query(sequence_length) for a in block.attentions)
        forward += group.count * sequence_length * (2 * matrices + 2 * scores)
    rows = sequence_length if model.head.per_token else 1
    if model.head.kind != "none":
        forward += 2 * rows * (model.shape.hidden * model.head.outputs + model.head.extra_matmul_parameters)
    return 3 * forward
