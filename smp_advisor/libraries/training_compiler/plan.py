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
    """A configuration of Training Compiler: data parallelism, one compiled replica on each GPU.

    The version is the framework's: it decides which container, and with it which estimator, holds the compiler.
    """

    SCRIPT_SETTINGS = ("batch_size", "precision")

    library: str = "training-compiler"
    version: str = "1.13.1"
    enabled: bool = True
    debug: bool = False
    # script settings
    batch_size: int = 1
    """Samples of one GPU's step."""
    precision: Precision = "fp16"
