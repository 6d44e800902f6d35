"""The plan of each library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.library.plans.data_parallel import DdpPlan, FsdpPlan
from smp_advisor.library.plans.smp_v1 import SmpV1Plan
from smp_advisor.library.plans.smp_v1_tensorflow import SmpV1TensorFlowPlan
from smp_advisor.library.plans.smp_v2 import SmpV2Plan
from smp_advisor.library.plans.training_compiler import TrainingCompilerPlan

if TYPE_CHECKING:
    from smp_advisor.library.plan import Plan

__all__ = ["KINDS", "DdpPlan", "FsdpPlan", "SmpV1Plan", "SmpV1TensorFlowPlan", "SmpV2Plan", "TrainingCompilerPlan"]

KINDS: dict[str, type[Plan]] = {
    "smp-v1": SmpV1Plan,
    "smp-v1-tensorflow": SmpV1TensorFlowPlan,
    "smp-v2": SmpV2Plan,
    "training-compiler": TrainingCompilerPlan,
    "ddp": DdpPlan,
    "fsdp": FsdpPlan,
}
