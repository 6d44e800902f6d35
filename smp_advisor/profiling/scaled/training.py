"""Real training steps of the scaled copy in the child process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from smp_advisor.profiling.extrapolation import FIGURES
from smp_advisor.profiling.parts import Agreement
from smp_advisor.profiling.recurrent_kernels import has_recurrent_layers
from smp_advisor.profiling.scaled.copies import scaled_copy
from smp_advisor.profiling.scaled.result import ScaledRun
from smp_advisor.profiling.step import call_model, loss_of, measure_step
from smp_advisor.profiling.structure import parameter_total, ties
from smp_advisor.sandbox import progress

if TYPE_CHECKING:
    from torch import Tensor

    from smp_advisor.profiling.profiled_model import ProfiledModel
    from smp_advisor.profiling.scaled.copies import Copy
    from smp_advisor.profiling.step import StepMeasure


_STAGES = 3
"""Building the copy with its trace, and two steps."""
_LEARNING_RATE = 5e-4
"""Small enough for convolutional networks, large enough for a visible change in a few steps."""


def train(profiled: ProfiledModel, inputs: Any, *, sequence: int, memory_bytes: int) -> ScaledRun:
    """Train a copy for two steps of AdamW in fp32, and compare the first one with its trace."""
    progress(0, _STAGES, "copy: building")
    with scaled_copy(profiled, inputs, sequence=sequence, memory_bytes=memory_bytes) as copy:
        model, groups, losses = copy.model, ties(copy.model), list[float]()
        optimizer = torch.optim.AdamW(
            [p for p in model.parameters() if p.requires_grad], lr=_LEARNING_RATE, foreach=False
        )
        torch.manual_seed(0)  # of dropout: otherwise the kernel's state would make every run a different one

        def update(loss: Tensor) -> set[str]:
            """Update the parameters after a backward pass, and return the names of those with a gradient."""
            losses.append(float(loss.detach()))
            print(f"step {len(losses)} loss {losses[-1]:.6g}", flush=True)  # noqa: T201 (the live log)
            names = {name for name, p in model.named_parameters() if p.grad is not None}
            optimizer.step()
            model.zero_grad(set_to_none=True)
            return names

        progress(1, _STAGES, "copy: step 1 of 2")
        real = measure_step(model, copy.inputs, attention="eager", operators=True, keeps_gradients=True)
        trained = update(real.loss)
        # The second step shows that the update took place.
        progress(2, _STAGES, "copy: step 2 of 2")
        loss = loss_of(call_model(model, copy.inputs))
        loss.backward()  # type: ignore[no-untyped-call]
        trained |= update(loss)  # a step may drop layers at random
        comparisons, notes = _compared(copy, real)
        missing = tuple(name for name, p in model.named_parameters() if p.requires_grad and name not in trained)
        return ScaledRun(
            name=profiled.name,
            reductions=copy.reductions,
            parameter_count=parameter_total([model]),
            losses=tuple(losses),
            returns_loss=real.returns_loss,
            sequence=copy.sequence,
            inputs=copy.description,
            trained=len(trained),
            without_gradient=missing,
            unused=tuple(name for name in missing if name.rpartition(".")[0] not in real.entered),
            frozen=sum(not p.requires_grad for p in model.parameters()),
            tied=tuple(group for group in groups if group in ties(model)),
            comparisons=comparisons,
            notes=notes,
        )


def _compared(copy: Copy, real: StepMeasure) -> tuple[tuple[Agreement, ...], tuple[str, ...]]:
    """Predictions for the copy next to its first step, and notes."""
    notes, comparable = list[str](), dict(FIGURES)
    if copy.sequence < copy.full_sequence:
        notes.append(f"tokens per sample reduced from {copy.full_sequence} to {copy.sequence}.")
    if copy.error is not None:
        failure = str(copy.error).splitlines()[0][:200] if str(copy.error) else type(copy.error).__name__
        notes.append(f"The copy could not be traced ({failure}): its figures are from real steps alone.")
    if copy.traced is None or copy.error is not None:
        return (), tuple(notes)
    if has_recurrent_layers(copy.model):
        del comparable["saved bytes"]
        notes.append(
            "Recurrent layers: the trace has the saved bytes of GPU kernels, and the kernels of this machine save more."
        )
    rows = (
        Agreement(figure=figure, predicted=read(copy.traced), measured=read(real), against="its trace")
        for figure, read in comparable.items()
    )
    return tuple(rows), tuple(notes)
