"""Settings of a trace, and the types of its parameters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from smp_advisor.profiling.precision import training_precision

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.profiling.assumptions import Assumptions
    from smp_advisor.profiling.precision import TrainingPrecision

__all__ = ["Settings", "compute_dtype"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Training settings that a trace depends on."""

    precision: str = "fp16"
    attention: str = "eager"
    optimizer: str = "adam"
    batch: int = 1
    sequence: int = 2048
    inputs: Any = None
    """Example inputs; None infers them."""
    assumptions: Assumptions | None = field(default=None, compare=False)
    """Values of data-dependent conditions; None raises on them."""
    checkpointing: bool = True
    """Whether to trace with checkpointed blocks as well."""
    known_constructors: bool = False
    """Whether the values of tensors of ones, zeros and consecutive numbers are computed, for models that read them."""
    build: str = "meta"
    """``meta``; ``fake`` for models with unregistered tensors; ``real`` for steps of a live module on real tensors."""
    on_progress: Callable[[float, float, str], None] | None = field(default=None, compare=False)

    @property
    def training_precision(self) -> TrainingPrecision:
        """State bytes and compute type of the precision."""
        return training_precision(self.precision)


def compute_dtype(precision: TrainingPrecision) -> torch.dtype:
    """Dtype of the traced parameters: bf16 represents fp16, which has the same size but fewer CPU kernels."""
    return torch.bfloat16 if precision.computes_in_16_bits else torch.float32
