"""All plans of SMP v1 with TensorFlow on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.libraries import axes
from smp_advisor.libraries.pipeline_schedule import SCHEDULES
from smp_advisor.libraries.space import Space

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["space"]

_FIELDS = ("partitions", "microbatches", "pipeline", "horovod", "batch_size")
"""Fields that the search varies. Other pinned fields are passed to the plan."""


def space(model: Model, cluster: Cluster, job: Job, pins: Mapping[str, Any]) -> Space:
    """All plans of SMP v1 with TensorFlow: partitions, batch, microbatches and both pipeline schedules."""
    shared = {"precision": job.precision, **{name: value for name, value in pins.items() if name not in _FIELDS}}
    blocks = _blocks(model, cluster, job, pins)
    return Space.of_blocks("smp-v1-tensorflow", cluster, job, _FIELDS, blocks, shared)


def _blocks(model: Model, cluster: Cluster, job: Job, pins: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    sequence = model.sequence_length(job.sequence_length)
    pipeline_pins = {**pins, **({"pipeline_parallel_degree": pins["partitions"]} if "partitions" in pins else {})}
    for degree in axes.pipeline_degrees(model, cluster, 1, pipeline_pins):
        pairs = axes.batches(job, sequence, cluster.gpus // degree, 1, pins)
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
