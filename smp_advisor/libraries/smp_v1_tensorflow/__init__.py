"""SMP v1 with TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from smp_advisor.core.elementwise import where
from smp_advisor.libraries.layout import Layout
from smp_advisor.libraries.library import Library
from smp_advisor.libraries.plan import Plan
from smp_advisor.libraries.schema import SCHEDULES, SIMPLE, default_active_microbatches
from smp_advisor.libraries.space import Space, batches, pipeline_degrees
from smp_advisor.libraries.state_bytes import amp, trained

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.layout import PlanColumns
    from smp_advisor.workload.job import Job, Precision
    from smp_advisor.workload.model import Model


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class SmpV1TensorFlowPlan(Plan):
    """A configuration of SMP v1 (TensorFlow): pipeline parallelism, with replicas by Horovod."""

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


def layout(plans: PlanColumns, job: Job, _: Cluster | None = None) -> Layout:
    """Columns of the cost model: a pipeline with replicas by Horovod. Half precision is Keras's mixed_float16."""
    degree, microbatches, simple = plans["partitions"], plans["microbatches"], plans["pipeline"] == SIMPLE
    return Layout.of_columns(
        trained(amp(job), job),
        rows=plans.rows,
        pipeline_parallel_degree=degree,
        batch_samples=plans["batch_size"],
        microbatches=microbatches,
        active_microbatches=where(simple, microbatches, default_active_microbatches(degree, microbatches)),
        simple_pipeline=simple,
        host_handover=True,
        spread_placement=plans["placement_strategy"] == "spread",
    )


_FIELDS = ("partitions", "microbatches", "pipeline", "horovod", "batch_size")
"""Fields that the search varies. Other pinned fields are passed to the plan."""


def space(model: Model, cluster: Cluster, job: Job, pins: Mapping[str, Any]) -> Space:
    """Return all plans of SMP v1 with TensorFlow: partitions, batch, microbatches and both pipeline schedules."""
    shared = {"precision": job.precision, **{name: value for name, value in pins.items() if name not in _FIELDS}}
    blocks = _blocks(model, cluster, job, pins)
    return Space.of_blocks("smp-v1-tensorflow", cluster, job, _FIELDS, blocks, shared)


def _blocks(model: Model, cluster: Cluster, job: Job, pins: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    sequence = model.sequence_length(job.sequence_length)
    pipeline_pins = {**pins, **({"pipeline_parallel_degree": pins["partitions"]} if "partitions" in pins else {})}
    for degree in pipeline_degrees(model, cluster, 1, pipeline_pins):
        pairs = batches(job, sequence, cluster.gpus // degree, 1, pins)
        for code, schedule in enumerate(SCHEDULES if degree > 1 else SCHEDULES[:1]):
            if pins.get("pipeline", schedule) == schedule:
                yield (
                    len(pairs),
                    {
                        "partitions": degree,
                        "microbatches": pairs[:, 1],
                        "pipeline": code,
                        "horovod": cluster.gpus > degree,
                        "batch_size": pairs[:, 0],
                    },
                )


LIBRARY = Library(
    name="smp-v1-tensorflow",
    package=__name__,
    plan=SmpV1TensorFlowPlan,
    layout=layout,
    stack="tensorflow",
    space=space,
    framework="tensorflow",
    launcher="mpi",
    default_precision="fp32",
    half_precision="amp",
    default_attention="eager",
    smdistributed=True,
    replication="horovod",
    script="keras",
    controls=("partitions", "batch_size", "microbatches", "pipeline"),
    alternatives=("partitions", "pipeline", "microbatches"),
)
