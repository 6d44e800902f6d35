"""Trial of a copy: whether its forward pass accepts the inputs, on fake tensors, and which layers it leaves out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from smp_advisor.profiling.failures import is_about_values
from smp_advisor.profiling.fake import fake_copy, fake_inputs, fake_mode
from smp_advisor.profiling.gpu_kernels import gpu_kernels
from smp_advisor.profiling.patching import quiet
from smp_advisor.profiling.step import call_model

if TYPE_CHECKING:
    from torch import nn

    from smp_advisor.profiling.inputs import ExampleInputs

__all__ = ["accepts", "idle_layers"]

_BATCH = 2
_TOKENS = 48


def accepts(model: nn.Module, example: ExampleInputs) -> bool:
    """Whether the model's forward pass accepts the inputs, or reads values, which decides nothing."""
    return idle_layers(model, example) is not None


def idle_layers(model: nn.Module, example: ExampleInputs) -> frozenset[str] | None:
    """Layers with parameters that a forward pass does not call; None if it fails."""
    mode = fake_mode()
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    called: set[str] = set()
    tokens = max(1, min(_TOKENS, example.longest * 3 // 4 or _TOKENS))
    try:
        with quiet(), torch.no_grad(), gpu_kernels("fused", lambda *_: None):
            copy = fake_copy(model, mode, None).train()
            layers = {name: part for name, part in copy.named_modules() if part._parameters and not part._modules}
            for name, part in layers.items():
                part.register_forward_pre_hook(lambda *_, name=name: called.add(name))
            inputs = fake_inputs(example.make(_BATCH, tokens), mode, dtype)
            with mode:
                call_model(copy, inputs)
    except Exception as error:  # noqa: BLE001 - a model may raise anything
        return frozenset() if is_about_values(error) else None
    return frozenset(layers) - called
