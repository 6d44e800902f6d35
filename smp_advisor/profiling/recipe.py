"""Precisions of training: what each keeps a parameter, and in which type it computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from smp_advisor.errors import ProfileError

__all__ = ["RECIPES", "Precision", "Recipe", "recipe"]

Precision = Literal["fp32", "amp", "bf16", "fp16"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Bytes a parameter at rest, before the optimizer's step, with Adam's two moments."""

    precision: Precision
    label: str
    """For people."""
    parameter_bytes: int
    gradient_bytes: int
    moment_bytes: int
    """Of one moment: Adam keeps two, SGD with momentum one."""
    copy_bytes: int
    """fp32 master parameters and gradients beside the 16-bit ones."""
    element_bytes: int
    """Of the activations that are computed in 16 or 32 bits."""
    autocast: bool = False
    """Computed under ``torch.autocast``, which keeps 16-bit copies of the weights until the backward pass."""

    def state_bytes(self, optimizer: str = "adam") -> int:
        """Bytes of optimizer state a parameter, master copies included; an optimizer unknown here counts as Adam."""
        if optimizer == "adam-8bit":
            return _QUANTIZED_MOMENTS + self.copy_bytes
        return _MOMENTS.get(optimizer, _MOMENTS["adam"]) * self.moment_bytes + self.copy_bytes


_MOMENTS = {"adam": 2, "sgd": 1, "lion": 1, "plain-sgd": 0, "adafactor": 0}
_QUANTIZED_MOMENTS = 2
"""Two of one byte."""


RECIPES: dict[str, Recipe] = {
    value.precision: value
    for value in (
        Recipe(
            precision="fp32",
            label="fp32",
            parameter_bytes=4,
            gradient_bytes=4,
            moment_bytes=4,
            copy_bytes=0,
            element_bytes=4,
        ),
        Recipe(
            precision="amp",
            label="mixed precision by torch.autocast",
            parameter_bytes=4,
            gradient_bytes=4,
            moment_bytes=4,
            copy_bytes=0,
            element_bytes=2,
            autocast=True,
        ),
        Recipe(
            precision="bf16",
            label="pure bf16",
            parameter_bytes=2,
            gradient_bytes=2,
            moment_bytes=2,
            copy_bytes=0,
            element_bytes=2,
        ),
        # FP16_Module and FP16_Optimizer, which SMP v1's fp16 switches on: 20 bytes a parameter (SMP documentation,
        # Introduction to model parallelism).
        Recipe(
            precision="fp16",
            label="fp16 with fp32 master copies, as SMP v1 wraps the model",
            parameter_bytes=2,
            gradient_bytes=2,
            moment_bytes=4,
            copy_bytes=8,
            element_bytes=2,
        ),
    )
}


def recipe(precision: object) -> Recipe:
    """Recipe by its name."""
    if not isinstance(precision, str) or precision not in RECIPES:
        raise ProfileError(f"precision must be one of {', '.join(RECIPES)}, not {precision!r}.")
    return RECIPES[precision]
