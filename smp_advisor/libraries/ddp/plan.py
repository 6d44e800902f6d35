"""Plans of PyTorch's DistributedDataParallel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smp_advisor.libraries.plan import Checkpointing, Plan

if TYPE_CHECKING:
    from smp_advisor.workload.job import Precision

__all__ = ["DdpPlan"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DdpPlan(Plan):
    """A configuration of PyTorch's DistributedDataParallel: one replica per GPU. The version is PyTorch's."""

    SCRIPT_SETTINGS = ("batch_size", "gradient_accumulation_steps", "precision", "activation_checkpointing")

    library: str = "ddp"
    version: str = "2.8.0"
    batch_size: int = 1
    """Samples per GPU and forward pass."""
    gradient_accumulation_steps: int = 1
    precision: Precision = "bf16"
    activation_checkpointing: Checkpointing = False
