"""Temporary memory of the optimizer step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from smp_advisor.profiling.fake import fake_mode
from smp_advisor.profiling.step_recorder import StepRecorder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.profiling.precision import TrainingPrecision

__all__ = ["make_optimizer", "optimizer_rise_bytes"]

_SAMPLE_ELEMENTS = 2**20
"""Large compared with the optimizer's step counters."""


def make_optimizer(parameters: Sequence[nn.Parameter], name: str, *, foreach: bool = True) -> torch.optim.Optimizer:
    """AdamW, or SGD with momentum; `foreach` is PyTorch's default on a GPU."""
    if name in {"sgd", "plain-sgd"}:
        return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9 if name == "sgd" else 0.0, foreach=foreach)
    return torch.optim.AdamW(parameters, lr=1e-3, foreach=foreach)


def optimizer_rise_bytes(model: nn.Module, name: str, precision: TrainingPrecision) -> int:
    """Temporaries of a steady-state step over the model's trainable parameters.

    There is one temporary per parameter, so a step over a few fake tensors gives the bytes per element.
    """
    sizes = [p.numel() for p in model.parameters() if p.requires_grad]
    if not sizes:
        return 0
    # The fp16 wrapper steps on its fp32 master copies.
    dtype = torch.float32 if precision.copy_bytes or precision.parameter_bytes == 4 else torch.bfloat16
    with fake_mode():
        parameters = [nn.Parameter(torch.empty(_SAMPLE_ELEMENTS, dtype=dtype)) for _ in range(2)]
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        optimizer = make_optimizer(parameters, name)
        recorder = StepRecorder({})
        recorder.track([*parameters, *(p.grad for p in parameters)])
        with recorder:
            optimizer.step()
            recorder.restart("optimizer")
            resident = recorder.live_bytes
            optimizer.step()
    # Rounding to full bytes per element excludes the few bytes of the step counters.
    return round((recorder.peak_bytes - resident) / (2 * _SAMPLE_ELEMENTS)) * sum(sizes)
