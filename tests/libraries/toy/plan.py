"""Plans of the toy library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smp_advisor.libraries.plan import Checkpointing, Plan

if TYPE_CHECKING:
    from smp_advisor.workload.job import Precision

__all__ = ["ToyPlan"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ToyPlan(Plan):
    """A configuration of the toy library: one replica per GPU, with a share of the optimizer state."""

    library: str = "toy-zero"
    version: str = "2.5.1"
    bucket_mib: int = 25
    batch_size: int = 1
    gradient_accumulation_steps: int = 1
    precision: Precision = "bf16"
    activation_checkpointing: Checkpointing = False
