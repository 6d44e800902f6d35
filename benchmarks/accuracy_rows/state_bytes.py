"""Bytes per parameter in libraries that the advisor has published runs of, but no plans for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from smp_advisor.libraries.state_bytes import StateBytes, smp_v1
from smp_advisor.workload.job import OPTIMIZERS

if TYPE_CHECKING:
    from smp_advisor.workload import Job

__all__ = ["COMPILED_LOGIT_BYTES", "PURE_LOGIT_BYTES", "deepspeed", "megatron", "megatron_fp16", "pure"]

COMPILED_LOGIT_BYTES = 6.0
"""With a compiled loss, or one fused into few kernels: the 16-bit logit, its gradient, and parts of both in fp32."""
PURE_LOGIT_BYTES = 4.0
"""The same in pure 16-bit training: the logit and its gradient, with fp32 values only for the current rows."""
FUSED_LOGIT_BYTES = 8.0
"""With Megatron's vocabulary-parallel loss: the logit, an fp32 copy that becomes the loss and its
gradient in place, and the 16-bit gradient."""


def megatron(job: Job) -> StateBytes:
    """Megatron-LM with gradients accumulated in fp32: 2 + 4 + 4 + 8 = 18 bytes with Adam.

    Source: Megatron-LM, ``core/optimizer/distrib_optimizer.md`` (table of theoretical memory).
    """
    return StateBytes(
        logit_bytes=FUSED_LOGIT_BYTES,
        fused_kernels=True,
        compute_bytes=2,
        parameter_bytes=2,
        gradient_bytes=4,
        moment_bytes=job.moment_bytes,
        copy_bytes=4,
        reduced_bytes=4,
    )


def megatron_fp16(job: Job) -> StateBytes:
    """Megatron-LM in fp16 without its distributed optimizer: the 20 bytes of SMP v1 and DDP's buckets, 22 in all.

    The buckets are a second copy of the 16-bit gradients, also with a single replica.
    """
    return replace(smp_v1(job), extra_gradient_bytes=2, logit_bytes=FUSED_LOGIT_BYTES, fused_kernels=True)


_ZERO_BUCKETS = 2 * 5e8
"""``reduce_bucket_size`` and ``allgather_bucket_size``, at DeepSpeed's defaults."""


def deepspeed(job: Job, *, zero: bool = True, fp32_accumulation: bool = False) -> StateBytes:
    """DeepSpeed: 2 + 2 + 12 bytes with Adam (Rajbhandari et al. 2020, arXiv 1910.02054), and fp32 gradients.

    Parameters
    ----------
    zero
        Whether ZeRO's optimizer runs, which stores the fp32 gradients of its partition with the state. Without it, they
        exist only in the optimizer step.
    fp32_accumulation
        Whether gradients are also accumulated in fp32, as in BF16_Optimizer.
    """
    stored = zero and not fp32_accumulation
    return StateBytes(
        logit_bytes=FUSED_LOGIT_BYTES,
        fused_kernels=True,
        compute_bytes=2,
        parameter_bytes=2,
        gradient_bytes=2,
        moment_bytes=job.moment_bytes,
        copy_bytes=8 if stored else 4,
        late_copy_bytes=4 if stored else 0,
        reduced_bytes=4 if fp32_accumulation else 2,
        extra_gradient_bytes=4 if fp32_accumulation else 0,
        step_bytes=2 if stored else 4,
        bucket_elements=_ZERO_BUCKETS if stored else 0,
    )


def pure(job: Job, *, fp32_state: bool = False) -> StateBytes:
    """Everything in 16 bits, including the optimizer state unless `fp32_state`: 2 + 2 + 4 = 8 bytes with Adam."""
    return StateBytes(
        compute_bytes=2,
        parameter_bytes=2,
        gradient_bytes=2,
        moment_bytes=OPTIMIZERS[job.optimizer].moment_bytes(4.0 if fp32_state else 2.0),
        copy_bytes=0,
        reduced_bytes=2,
        gradients_persist=False,
    )
