"""Plans of SMP v1 with TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from smp_advisor.libraries.pipeline_schedule import default_active_microbatches
from smp_advisor.libraries.plan import Plan

if TYPE_CHECKING:
    from smp_advisor.workload.job import Precision

__all__ = ["SmpV1TensorFlowPlan"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SmpV1TensorFlowPlan(Plan):
    """A configuration of SMP v1 (TensorFlow): pipeline parallelism, with replicas by Horovod."""

    SCRIPT_SETTINGS = ("batch_size", "precision")
    BATCH_DEGREES = ("partitions",)
    PIPELINE_FIELD = "partitions"

    library: str = "smp-v1-tensorflow"
    version: str = "1.4.0"
    partitions: int = 1
    microbatches: int = 1
    pipeline: Literal["interleaved", "simple"] = "interleaved"
    optimize: Literal["speed", "memory"] = "memory"
    placement_strategy: str = "cluster"
    horovod: bool = False
    auto_partition: bool = True
    default_partition: int | None = None
    contiguous: bool = True
    # script settings
    batch_size: int = 1
    """Samples per replica and step, which the library splits into microbatches."""
    precision: Precision = "fp32"

    @property
    def pipeline_parallel_degree(self) -> int:
        """Consecutive stages of the model: `partitions`."""
        return self.partitions

    @property
    def active_in_flight(self) -> int:
        """Microbatches in the pipeline at a time; TensorFlow has no parameter for it."""
        if self.pipeline == "simple":
            return self.microbatches
        return default_active_microbatches(self.partitions, self.microbatches)

    @property
    def ddp(self) -> bool:
        """Whether the model is replicated: `horovod`."""
        return self.horovod
