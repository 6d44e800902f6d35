"""Bytes per parameter in the training state, by purpose."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from smp_advisor.workload.job import Job


CAST_LOGIT_BYTES = 12.0
"""With PyTorch's loss over an fp32 copy of 16-bit logits: the copy and two gradients of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StateBytes:
    """Bytes per trained parameter, by purpose, before any sharding.

    Sharding level 1 divides `moment_bytes` and `copy_bytes`, level 2 also `gradient_bytes`, level 3 all but
    `extra_gradient_bytes`.
    """

    compute_bytes: int
    """Bytes per element of activations, gathered parameters and messages between GPUs."""
    parameter_bytes: float
    """The stored parameter, which training uses or casts."""
    gradient_bytes: float
    moment_bytes: float
    """Optimizer state: 8 for Adam's two moments in fp32."""
    copy_bytes: float
    """fp32 copies of parameters (and gradients) along with the 16-bit ones."""
    outside_moment_bytes: float = 0.0
    """Further optimizer state of a parameter outside the blocks (Muon, which leaves embedding and head to Adam)."""
    embedding_moment_bytes: float = 0.0
    """Further optimizer state of a parameter of the token embedding (8-bit states, which leave it in fp32)."""
    late_copy_bytes: float = 0.0
    """The part of `copy_bytes` that exists only in the optimizer step if parameters are sharded: ZeRO-3 casts
    16-bit gradients to fp32 then."""
    reduced_bytes: float
    """Bytes per element of gradients in reductions over data parallelism."""
    reduces_late: bool = False
    """Whether gradients are reduced after the backward pass rather than during it."""
    extra_gradient_bytes: float = 0.0
    """fp32 accumulation of gradients, which is never sharded."""
    gradients_persist: bool = True
    """Whether gradients keep their memory between steps, like flat buffers and DDP's buckets. Otherwise, a step of one
    microbatch starts without gradients (``zero_grad`` sets them to None) and ends without activations."""
    root_stays_gathered: bool = True
    """With sharded parameters: whether embedding and head stay gathered from forward to backward pass, like all
    parameters of FSDP's root, or are gathered only for their own use."""
    cast_bytes: float = 0.0
    """16-bit casts of the weights, cached by autocast during forward and backward pass."""
    step_bytes: float = 0.0
    """Temporary memory of the optimizer step per updated parameter (a full copy for a ``foreach`` optimizer)."""
    logit_bytes: float = CAST_LOGIT_BYTES
    """A logit and its loss at the start of the backward pass: 12 with PyTorch's loss on 16-bit logits, for a stored
    fp32 copy (4) and two gradients of it (4 + 4)."""
    loss_in_parts: bool = False
    """Whether a language model's loss is computed for a part of its logits at a time, see `loss_in_parts`."""
    fused_kernels: bool = False
    """Whether an RMSNorm stores only its input and output, and a gated activation its two inputs (Megatron, Apex,
    Transformer Engine, ``torch.compile``). Otherwise, they are transformers' own operations, which store more."""
    bucket_elements: float = 0.0
    """Elements of the buffers for reduced gradients and gathered parameters, if they are large."""
    accumulates_unsharded: bool = False
    """Whether gradients of sharded parameters are accumulated unsharded, in the type of their reduction."""
    paged_moment_bytes: float = 0.0
    """Optimizer state in pageable host memory, not part of `moment_bytes`."""
    fp32_inputs: bool = False
    """Whether the values between blocks, which checkpointing saves, are fp32 whatever `compute_bytes` is."""
    doubled_inputs: bool = False
    """Whether a run holds about twice the checkpointed inputs."""
    loaded_entirely: bool = False
    """Whether every GPU has the full quantized model before it is sharded."""
    loaded_copies: Literal["", "first", "unsupported", "each"] = ""
    """Processes of a node that load the model into host memory: none, the first of the job, the first for families
    whose layers the library does not build itself, or each."""
    unpacked: bool = False
    """Whether frozen weights are unpacked into the compute type for every use (bitsandbytes)."""
    gathered_element_bytes: float = 0.0
    """Bytes per element of gathered parameters where they are not those of `compute_bytes` (autocast)."""
    adapter_units: bool = False
    """Whether FSDP shards every product of an adapter as a unit of its own."""
    frozen_bytes: float | None = None
    """A frozen weight under an adapter, including scales; None if every parameter is trained. The other values are then
    those of the adapter's parameters."""
    frozen_scale_bytes: float = 0.0
    """The part of `frozen_bytes` that are scales, of which every GPU has all."""

    @property
    def gathered_bytes(self) -> float:
        """Bytes per element of gathered parameters. Quantized ones are sent as they are stored."""
        if self.frozen_bytes is None:
            return self.gathered_element_bytes or float(self.compute_bytes)
        return min(self.frozen_bytes, self.compute_bytes)

    @property
    def total_bytes(self) -> float:
        """Bytes per parameter between backward pass and optimizer step, unsharded."""
        return (
            self.parameter_bytes + self.gradient_bytes + self.moment_bytes + self.copy_bytes + self.extra_gradient_bytes
        )


def loss_in_parts(job: Job) -> bool:
    """Return whether the exported script for FSDP or DDP computes the loss in parts although the job does not state it.

    It does in fine-tuning, as TRL's trainers (1.16.0, ``add_fused_lm_head``), of models that predict the next token.
    """
    return job.tunes and job.loss == "plain" and job.stack == "auto"


def reduces_in_fp32(job: Job) -> bool:
    """Return whether gradients of sharded parameters are reduced in fp32: by the job, or by the exported script.

    torchtitan allows nothing else (``mixed_precision_reduce``).
    """
    usual = job.stack == "auto" and job.state_precision == "mixed"
    return job.precision == "fp32" or job.gradient_reduction == "fp32" or (job.gradient_reduction == "auto" and usual)


_LOSS_ELEMENTS = {"chunked": 1.0, "fused": 2.0}
"""Elements per logit in the compute type: the logit, and for a fused loss its gradient. The fp32 values of a chunk or a
kernel exist only for its rows."""


_ONE_KERNEL_LOSS_ELEMENTS = {"mixed": 3.0, "16-bit": 2.0}
"""With a compiled loss, or softmax and loss in few kernels, by precision of the states: the logit, its gradient, and
with mixed precision parts of both in fp32."""


def _of_autocast(state: StateBytes, job: Job) -> StateBytes:
    """State bytes of half precision by autocast, or by casts of parameters, where the job or its code has the other.

    Under autocast, the stream between blocks and gathered units are fp32 (4 bytes), and weights are cast for their use.
    Where parameters are cast, an optimizer over 16-bit parameters has fp32 copies of them, and of gradients in its step
    (Apex O2; 2 + 2 + 4 + 8 bytes with Adam).
    """
    off = job.autocast == "off" or (job.autocast == "auto" and job.stack_record.casts == "parameters")
    if job.precision == "fp32":
        return state
    if off and state.cast_bytes:
        return replace(
            state, parameter_bytes=2, gradient_bytes=2, copy_bytes=4, cast_bytes=0, reduced_bytes=2, step_bytes=4,
            logit_bytes=CAST_LOGIT_BYTES,
        )  # fmt: skip
    if job.autocast == "on" and not state.cast_bytes and state.parameter_bytes > state.compute_bytes:
        return replace(state, cast_bytes=2, gathered_element_bytes=4, fp32_inputs=True, reduced_bytes=4, logit_bytes=16)
    return state


def _of_optimizer(state: StateBytes, job: Job) -> StateBytes:
    """State bytes with the job's own optimizer and form of its step."""
    state = replace(
        state, outside_moment_bytes=job.outside_moment_bytes, embedding_moment_bytes=job.embedding_moment_bytes
    )
    if job.optimizer_step != "auto":
        foreach = job.optimizer_step == "foreach" and job.optimizer == "adam"
        state = replace(state, step_bytes=job.moment_bytes / 2 if foreach else 0.0)
    if job.optimizer_step == "backward":
        state = replace(state, gradient_bytes=0)
    if job.paged_optimizer:
        state = replace(state, moment_bytes=0, paged_moment_bytes=state.moment_bytes)
    return state


@lru_cache(maxsize=256)
def trained(state_bytes: StateBytes, job: Job) -> StateBytes:
    """State bytes with the job's own settings of code, states, optimizer, loss and adapter."""
    state = _of_autocast(state_bytes, job)
    if job.state_precision == "16-bit":
        state = replace(
            state,
            compute_bytes=2,
            parameter_bytes=2,
            gradient_bytes=2,
            copy_bytes=0,
            late_copy_bytes=0,
            cast_bytes=0,
            reduced_bytes=4 if reduces_in_fp32(job) else 2,
            gradients_persist=False,
            step_bytes=state.step_bytes / 2,
            logit_bytes=min(state.logit_bytes, CAST_LOGIT_BYTES),  # without autocast's own copies
        )
    state, code = _of_optimizer(state, job), job.stack_record
    if job.separate_embeddings:
        state = replace(state, root_stays_gathered=False)
    if code.elementwise == "fused":
        state = replace(state, fused_kernels=True)
    if code.logit_bytes and job.precision != "fp32":
        state = replace(state, logit_bytes=code.logit_bytes)
    if code.loss == "fused":
        elements = _ONE_KERNEL_LOSS_ELEMENTS[job.state_precision]
        state = replace(state, logit_bytes=min(state.logit_bytes, elements * state.compute_bytes))
    if job.loss != "plain":
        state = replace(state, logit_bytes=_LOSS_ELEMENTS[job.loss] * state.compute_bytes)
    return over_frozen(replace(state, accumulates_unsharded=job.unsharded_accumulation), job)


def over_frozen(state_bytes: StateBytes, job: Job) -> StateBytes:
    """State bytes of a job with an adapter: `state_bytes` for its parameters, one copy of the frozen ones."""
    if job.adapter is None:
        return state_bytes
    state_bytes = replace(state_bytes, frozen_scale_bytes=job.adapter.scale_bytes_per_parameter)
    frozen = job.adapter.base_bytes_per_parameter if job.adapter.quantized else float(state_bytes.compute_bytes)
    if job.fp8_weights and not job.adapter.quantized:
        frozen = 1.0
    return replace(state_bytes, frozen_bytes=frozen, unpacked=job.adapter.quantized, fp32_inputs=job.adapter.upcast)


@lru_cache(maxsize=256)
def smp_v1(job: Job) -> StateBytes:
    """SMP v1: 2 + 2 + 8 + (4 + 4) = 20 bytes in half precision with Adam, 16 in fp32.

    Source: SMP documentation, Introduction to model parallelism. Sharded data parallelism is based on DeepSpeed's
    ZeRO-3, which uses the last 4 only in the optimizer step. AWS's sample of GPT-2 30B fits its GPUs only that way, and
    only without an fp32 copy of the logits next to fused attention.
    """
    if job.precision == "fp32":
        return fully_sharded(job)
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


@lru_cache(maxsize=256)
def amp(job: Job) -> StateBytes:
    """Autocast over fp32 parameters (plain DDP): 4 + 4 + 8 bytes and 2 of casts (facts: PyTorch AMP)."""
    half = job.precision != "fp32"
    return replace(
        fully_sharded(job),
        reduced_bytes=4,
        cast_bytes=2 if half else 0,
        # The logit and its shifted copy, the log-softmax, and two gradients of it.
        logit_bytes=16 if half else 20,
    )


@lru_cache(maxsize=256)
def ddp(job: Job) -> StateBytes:
    """Autocast over fp32 parameters with AdamW, whose ``foreach`` step has all roots of second moments at once."""
    return replace(amp(job), step_bytes=4.0 if job.optimizer == "adam" else 0.0)


@lru_cache(maxsize=256)
def fully_sharded(job: Job) -> StateBytes:
    """FSDP with mixed precision: fp32 shards of parameter, gradient and state (16 bytes), 16-bit gathered units."""
    half = job.precision != "fp32"
    return StateBytes(
        compute_bytes=2 if half else 4,
        parameter_bytes=4,
        gradient_bytes=4,
        moment_bytes=job.moment_bytes,
        copy_bytes=0,
        reduced_bytes=4 if reduces_in_fp32(job) else 2,
    )


HALF_LOGIT_BYTES = 6.0
"""With PyTorch's loss on 16-bit logits without a cast to fp32: log-softmax and two gradients."""
RETURNED_HALF_LOGIT_BYTES = HALF_LOGIT_BYTES + 2
"""The same for models that return the logits along with the loss, like those of transformers, and so store them."""
