"""Time of operators of which only FLOPs and memory traffic are counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from smp_advisor.costs.attention_rates import share_of_peak
from smp_advisor.costs.constants import constant, gpu_constant
from smp_advisor.costs.rates import memory_bandwidth, peak_flops
from smp_advisor.workload.job import Job

if TYPE_CHECKING:
    from smp_advisor.cluster.instance import Instance

__all__ = ["operator_seconds"]


def operator_seconds(
    kind: Literal["product", "attention", "memory"],
    flops: float,
    moved_bytes: float,
    instance: Instance,
    *,
    fp32: bool = False,
    head_dim: int = 128,
    keys: int = 2048,
    causal: bool = False,
    backward: bool = False,
) -> float:
    """Roofline of operators on one GPU, at the rates of the step-time model: the slower of arithmetic and memory.

    The rate of products is that of very large ones, and launches cost nothing, so that this is a lower estimate for
    small operators.

    Parameters
    ----------
    kind
        ``product``, ``attention`` (one kernel, with the rate of FlashAttention-2) or ``memory``.
    flops, moved_bytes
        Sums over the operators. FLOPs of attention include masked scores, which a causal kernel skips.
    fp32
        Whether products are in fp32; attention kernels and other products are in 16 bits.
    head_dim, keys
        Width of a head and keys of a query, for ``attention``.
    causal, backward
        Mask and pass, for ``attention``.
    """
    moving = float(moved_bytes / memory_bandwidth(instance))
    if kind == "memory":
        return moving
    peak = peak_flops(instance, Job(precision="fp32" if fp32 else "bf16"))
    if kind == "product":
        share = constant("time.fp32_matmul_efficiency") if fp32 else gpu_constant("matmul_efficiency", instance.gpu)
    else:
        of: Literal["forward", "backward"] = "backward" if backward else "forward"
        share = share_of_peak("flash-2", instance.gpu, head_dim, keys, causal=causal, of=of)
        flops = flops / 2 if causal else flops
    return max(moving, float(flops / (peak * share)))
