"""Time of matrix products on one GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.costs.constants import constant, gpu_constant
from smp_advisor.costs.rates import memory_bandwidth, peak_flops
from smp_advisor.elementwise import ceil, common_divisor, maximum, where

if TYPE_CHECKING:
    from smp_advisor.cluster.instance import Instance
    from smp_advisor.costs.world import World
    from smp_advisor.elementwise import Floats
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.workload.block import Matmul
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.stack import Stack

__all__ = ["product_seconds", "products_seconds"]

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
    useful = rows * columns * per_processor
    best: Floats = 0.0
    for height, width, rate in _TILES:
        waves = down[height] * across[width] * per_processor
        # Concurrent kernels and uneven clocks reduce the effect of the last wave.
        slots = (1 - smoothing) * waves + smoothing * ceil(waves)
        best = maximum(best, rate / (height * width) * useful / slots)
    result: Floats = best * inner / (inner + constant("time.matmul_half_inner"))
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
        efficiency: Floats | float = constant("time.fp32_matmul_efficiency")
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
    """Seconds of all products of weights of a block."""
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
