"""Peak rates of one GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.costs.constants import constant, fp32_peak_tflops

if TYPE_CHECKING:
    from smp_advisor.cluster.instance import Instance
    from smp_advisor.elementwise import Floats
    from smp_advisor.workload.job import Job

__all__ = ["memory_bandwidth", "peak_flops"]


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


def memory_bandwidth(instance: Instance) -> Floats:
    """Bytes per second that element-wise kernels move."""
    return instance.hbm_gb_per_s * 1e9 * constant("time.memory_efficiency")
