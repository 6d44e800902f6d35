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


def make_optimizer(parameters: Sequence[nn.Parameter], name: str, *, foreach: bool = True) -> torch.optim.Optimizer:
    """AdamW, or SGD with momentum; `foreach` is PyTorch's default on a GPU."""
    if name in {"sgd", "plain-sgd"}:
        return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9 if name == "sgd" else 0.0, foreach=foreach)
    return torch.optim.AdamW(parameters, lr=1e-3, foreach=foreach)


def optimizer_rise_bytes(model: nn.Module, name: str, precision: TrainingPrecision, *, foreach: bool = True) -> int:
    """Temporaries of a steady-state step over the model's trainable parameters.

    With `foreach` there is one temporary per parameter, so a step over a few fake tensors gives the bytes per element.
    Otherwise only the largest parameter's temporaries exist at a time.
    """
    sizes = [p.numel() for p in model.parameters() if p.requires_grad]
    if not sizes:
        return 0
    # The fp16 wrapper steps on its fp32 master copies.
    dtype = torch.float32 if precision.copy_bytes or precision.parameter_bytes == 4 else torch.bfloat16
    if not foreach:
        return _rise([max(sizes)], name, dtype, foreach=False)
    sample = [_SAMPLE_ELEMENTS] * 2
    return _rise(sample, name, dtype, foreach=True) * sum(sizes) // sum(sample)


_SAMPLE_ELEMENTS = 2**20
"""Large compared with the optimizer's step counters."""


def _rise(sizes: Sequence[int], name: str, dtype: torch.dtype, *, foreach: bool) -> int:
    with fake_mode():
        parameters = [nn.Parameter(torch.empty(size, dtype=dtype)) for size in sizes]
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        optimizer = make_optimizer(parameters, name, foreach=foreach)
        recorder = StepRecorder({})
        recorder.track([*parameters, *(p.grad for p in parameters)])
        with recorder:
            optimizer.step()
            recorder.restart("optimizer")
            resident = recorder.live_bytes
            optimizer.step()
    # Rounding to full elements excludes the few bytes of the step counters.
    return round((recorder.peak_bytes - resident) / sum(sizes)) * sum(sizes)
