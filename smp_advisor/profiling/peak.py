"""Peak memory of a training step on one GPU, computed from a profile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from smp_advisor.profiling.precision import training_precision

if TYPE_CHECKING:
    from smp_advisor.profiling.result import Profile

__all__ = ["PeakMemory", "peak_memory"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PeakMemory:
    """Peak bytes of a step with resident optimizer state, excluding allocator overhead and CUDA context."""

    phase: Literal["forward", "backward", "optimizer"]
    parameters_bytes: int
    optimizer_state_bytes: int
    """Moments and fp32 copies."""
    gradients_bytes: int
    """Gradients of all parameters, at the end of the backward pass."""
    activations_bytes: int
    """Activations saved by autograd at the end of the forward pass."""
    passes_bytes: int
    """Peak of the forward and backward passes alone."""
    peak_bytes: int

    @property
    def peak_gib(self) -> float:
        """`peak_bytes` in GiB."""
        return self.peak_bytes / 2**30


def peak_memory(
    profile: Profile,
    batch: int,
    sequence: int = 1,
    *,
    checkpointing: bool = False,
    persistent_gradients: bool = False,
) -> PeakMemory:
    """Peak memory at a batch size and sequence length, from the profile's timeline.

    If gradients are freed between steps, the peak of a transformer with an fp32 loss is
    ``P + O + max(A + 8bsV, G + one block)``: at the start of the backward pass, with all activations, or at its end,
    with all gradients. The timeline covers every point in between.
    """
    precision = training_precision(profile.precision)
    timeline = profile.checkpointed_timeline if checkpointing else profile.timeline
    parameters = precision.parameter_bytes * profile.parameter_count + profile.buffer_bytes
    state = precision.state_bytes(profile.optimizer) * profile.trainable_parameter_count
    resident = parameters + state + profile.input_bytes(batch, sequence)
    gradients = profile.gradient_bytes
    saved = profile.activation_bytes(batch, sequence, checkpointing=checkpointing)

    live = 0
    phase: Literal["forward", "backward", "optimizer"] = "forward"
    highest = 0
    for segment in timeline:
        top = live + segment.rise_bytes(batch, sequence)
        if persistent_gradients:
            top += gradients
        if top > highest:
            highest, phase = top, segment.phase
        live += segment.change_bytes(batch, sequence)
    if not timeline:  # the timeline could not be fitted: use the closed form, without the loss
        highest, phase = saved + (gradients if persistent_gradients else 0), "backward"
    passes = resident + highest
    step = gradients + profile.optimizer_rise_bytes
    if step > highest:
        highest, phase = step, "optimizer"
    return PeakMemory(
        phase=phase,
        parameters_bytes=parameters,
        optimizer_state_bytes=state,
        gradients_bytes=gradients,
        activations_bytes=saved,
        passes_bytes=passes,
        peak_bytes=resident + highest,
    )
