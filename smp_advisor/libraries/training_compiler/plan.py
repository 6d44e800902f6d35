"""Plans of SageMaker Training Compiler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smp_advisor.libraries.plan import Plan

if TYPE_CHECKING:
    from smp_advisor.workload.job import Precision

__all__ = ["TrainingCompilerPlan"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingCompilerPlan(Plan):
    """A configuration of Training Compiler: data parallelism with one compiled replica per GPU.

    The version is that of the framework. It decides the container with the compiler, and its estimator.
    """

    SCRIPT_SETTINGS = ("batch_size", "precision")

    library: str = "training-compiler"
    version: str = "1.13.1"
    enabled: bool = True
    debug: bool = False
    # script settings
    batch_size: int = 1
    """Samples per GPU and step."""
    precision: Precision = "fp16"
