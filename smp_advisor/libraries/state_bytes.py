"""Bytes that an engine stores per parameter, by purpose."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from smp_advisor.workload.optimizer import OPTIMIZERS

if TYPE_CHECKING:
    from smp_advisor.workload.job import Job

__all__ = [
    "COMPILED_LOGIT_BYTES",
    "FUSED_LOGIT_BYTES",
    "HALF_LOGIT_BYTES",
    "PURE_LOGIT_BYTES",
    "RETURNED_HALF_LOGIT_BYTES",
    "StateBytes",
    "amp",
    "ddp",
    "deepspeed",
    "fully_sharded",
    "megatron",
    "megatron_fp16",
    "over_frozen",
    "pure",
    "smp_v1",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class StateBytes:
    """Bytes a trained parameter takes, by purpose, before any sharding.

    Sharding level 1 divides `moment_bytes` and `copy_bytes`, level 2 also `gradient_bytes`, level 3 all but
    `extra_gradient_bytes`.
    """

    compute_bytes: int
    """Element of activations, gathered parameters and messages between GPUs."""
    parameter_bytes: float
    """The stored parameter that training computes with, or is cast from."""
    gradient_bytes: float
    """The gradient that is kept until the optimizer's step."""
    moment_bytes: float
    """Optimizer state: 8 for Adam's two moments in fp32."""
    copy_bytes: float
    """fp32 copies of parameters (and gradients) in addition to the 16-bit ones."""
    late_copy_bytes: float = 0.0
    """The part of `copy_bytes` that is made in the optimizer's step only where parameters are sharded: ZeRO-3 casts
    16-bit gradients to fp32 then."""
    reduced_bytes: float
    """Element in which gradients are reduced over data parallelism."""
    extra_gradient_bytes: float = 0.0
    """fp32 accumulation of gradients that no sharding divides."""
    gradients_persist: bool = True
    """Whether gradients keep their memory from step to step, as flat buffers and DDP's buckets do; otherwise a step of
    one microbatch starts without any (``zero_grad`` sets them to None) and ends without activations."""
    frozen_gradient_bytes: float = 0.0
    """Gradient of a frozen parameter that no sharding divides: FSDP's flat parameter has one for all that it holds as
    soon as an adapter is among it."""
    root_stays_gathered: bool = True
    """Where parameters are sharded: whether embedding and head stay gathered from forward to backward pass, as what
    FSDP's root holds does, or are gathered for their own use only."""
    cast_bytes: float = 0.0
    """16-bit casts of the weights that autocast keeps during forward and backward pass."""
    step_bytes: float = 0.0
    """Temporaries of the optimizer's step, per updated parameter (a ``foreach`` optimizer allocates one full copy)."""
    logit_bytes: float = 12.0
    """A logit and its loss at the start of the backward pass. 12 with PyTorch's own loss on 16-bit logits: an fp32 copy
    that is kept (4), and two gradients of it (4 + 4)."""
    fused_kernels: bool = False
    """Whether an RMSNorm keeps its input and output only, and a gated activation its two inputs (Megatron, Apex,
    Transformer Engine, ``torch.compile``); otherwise they are transformers' own operations, which keep more."""
    bucket_elements: float = 0.0
    """Elements of the buffers in which gradients are reduced and parameters gathered, where they are large."""
    frozen_bytes: float | None = None
    """A weight of the frozen products under an adapter, scales included; None where every parameter is trained. The
    other figures are then those of the adapter's parameters."""

    @property
    def gathered_bytes(self) -> float:
        """Element of parameters gathered for use: quantized ones are sent as they are stored."""
        return float(self.compute_bytes) if self.frozen_bytes is None else min(self.frozen_bytes, self.compute_bytes)

    @property
    def total_bytes(self) -> float:
        """Bytes per parameter between backward pass and step, unsharded."""
        return (
            self.parameter_bytes + self.gradient_bytes + self.moment_bytes + self.copy_bytes + self.extra_gradient_bytes
        )


def over_frozen(state_bytes: StateBytes, job: Job) -> StateBytes:
    """StateBytes of a job's adapter: its parameters are stored as in `state_bytes`, the frozen ones once."""
    if job.adapter is None:
        return state_bytes
    frozen = job.adapter.base_bytes_per_parameter if job.adapter.quantized else float(state_bytes.compute_bytes)
    return replace(state_bytes, frozen_bytes=frozen)


def smp_v1(job: Job) -> StateBytes:
    """SMP v1: 2 + 2 + 8 + (4 + 4) = 20 bytes in half precision with Adam, 16 in fp32.

    Source: SMP documentation, Introduction to model parallelism. Sharded data parallelism is built on DeepSpeed's
    ZeRO-3, which has the last 4 in the optimizer's step only; AWS's sample of GPT-2 30B with it fits its GPUs in no
    other way, nor with an fp32 copy of the logits with its fused attention.
    """
    if job.precision == "fp32":
        return StateBytes(
            compute_bytes=4,
            parameter_bytes=4,
            gradient_bytes=4,
            moment_bytes=job.moment_bytes,
            copy_bytes=0,
            reduced_bytes=4,
        )
    return StateBytes(
        compute_bytes=2,
        parameter_bytes=2,
        gradient_bytes=2,
        moment_bytes=job.moment_bytes,
        copy_bytes=8,
        late_copy_bytes=4,
        reduced_bytes=2,
        logit_bytes=HALF_LOGIT_BYTES if job.attention == "fused" else 12.0,
    )


def amp(job: Job) -> StateBytes:
    """Autocast over fp32 parameters (plain DDP): 4 + 4 + 8 bytes and 2 of casts (facts: PyTorch AMP)."""
    half = job.precision != "fp32"
    return StateBytes(
        compute_bytes=2 if half else 4,
        parameter_bytes=4,
        gradient_bytes=4,
        moment_bytes=job.moment_bytes,
        copy_bytes=0,
        reduced_bytes=4,
        cast_bytes=2 if half else 0,
        # The logit and its shifted copy, the log-softmax, and two gradients of it.
        logit_bytes=16 if half else 20,
    )


def ddp(job: Job) -> StateBytes:
    """Autocast over fp32 parameters with PyTorch 2's AdamW, which updates all of them together (``foreach``).

    The square roots of all second moments are there at once then. Published runs of FSDP over flat parameters fit their
    GPUs only without that.
    """
    return replace(amp(job), step_bytes=4.0 if job.optimizer == "adam" else 0.0)


def fully_sharded(job: Job) -> StateBytes:
    """FSDP with mixed precision: fp32 shards of parameter, gradient and state (16 bytes), 16-bit gathered units."""
    half = job.precision != "fp32"
    return StateBytes(
        compute_bytes=2 if half else 4,
        parameter_bytes=4,
        gradient_bytes=4,
        moment_bytes=job.moment_bytes,
        copy_bytes=0,
        reduced_bytes=2 if half else 4,
    )


COMPILED_LOGIT_BYTES = 6.0
"""With a loss compiled or fused into few kernels: the 16-bit logit, its gradient, and some of both in fp32."""
HALF_LOGIT_BYTES = 6.0
"""With PyTorch's loss on 16-bit logits that no code casts up: log-softmax and two gradients."""
RETURNED_HALF_LOGIT_BYTES = HALF_LOGIT_BYTES + 2
"""The same for models that return the logits with the loss, as transformers' do, and so keep them."""
PURE_LOGIT_BYTES = 4.0
"""The same in pure 16-bit training: the logit and its gradient, fp32 values only for the rows at work."""
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
    """DeepSpeed: 2 + 2 + 12 bytes with Adam (Rajbhandari et al. 2020, arXiv 1910.02054), and its step's own gradients.

    Parameters
    ----------
    zero
        Whether ZeRO's optimizer runs, which stores the fp32 gradients of its partition with the state; without it,
        they are allocated for the step.
    fp32_accumulation
        Whether gradients are accumulated in fp32 in addition to the 16-bit ones, as its BF16_Optimizer does.
    """
    keeps_gradients = zero and not fp32_accumulation
    return StateBytes(
        logit_bytes=FUSED_LOGIT_BYTES,
        fused_kernels=True,
        compute_bytes=2,
        parameter_bytes=2,
        gradient_bytes=2,
        moment_bytes=job.moment_bytes,
        copy_bytes=8 if keeps_gradients else 4,
        late_copy_bytes=4 if keeps_gradients else 0,
        reduced_bytes=4 if fp32_accumulation else 2,
        extra_gradient_bytes=4 if fp32_accumulation else 0,
        step_bytes=2 if keeps_gradients else 4,
        bucket_elements=_ZERO_BUCKETS if keeps_gradients else 0,
    )


def pure(job: Job, *, fp32_state: bool = False) -> StateBytes:
    """Everything in 16 bits, optimizer state too unless `fp32_state`: 2 + 2 + 4 = 8 bytes with Adam."""
    return StateBytes(
        compute_bytes=2,
        parameter_bytes=2,
        gradient_bytes=2,
        moment_bytes=OPTIMIZERS[job.optimizer].moment_bytes(4.0 if fp32_state else 2.0),
        copy_bytes=0,
        reduced_bytes=2,
        gradients_persist=False,
    )
