"""Every plan of SMP v1 with TensorFlow on a cluster, as columns."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from smp_advisor.costs.layout import Layout
from smp_advisor.costs.recipe import amp
from smp_advisor.search import axes
from smp_advisor.search.space import Space

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["enumerate_tensorflow"]

_COLUMNS = frozenset({"batch_size", "horovod", "microbatches", "partitions", "pipeline"})
"""Plan fields that a row decides; any other pinned field is passed on to the plan as it is."""


def _settings(at: Mapping[str, Any], *, precision: str, gpus: int) -> dict[str, Any]:
    """Fields of the plan of a row."""
    return {
        "partitions": at["pipeline_parallel_degree"],
        "microbatches": at["microbatches"],
        "pipeline": "simple" if at["simple_pipeline"] else "interleaved",
        "horovod": gpus > at["pipeline_parallel_degree"],
        "batch_size": at["batch_samples"],
        "precision": precision,
    }


def enumerate_tensorflow(model: Model, cluster: Cluster, job: Job, pins: Mapping[str, Any]) -> Space:
    """All plans of SMP v1 with TensorFlow: partitions, batch, microbatches and both pipeline schedules."""
    sequence = model.sequence_length(job.sequence_length)
    held = {**pins, **({"pipeline_parallel_degree": pins["partitions"]} if "partitions" in pins else {})}
    parts = [
        _layout(axes.batches(job, sequence, cluster.gpus // pp, 1, pins), job, pp, simple=simple, pins=pins)
        for pp in axes.pipeline_degrees(model, cluster, 1, held)
        for simple in (False, True)
        if pp > 1 or not simple
        if pins.get("pipeline", "simple" if simple else "interleaved") == ("simple" if simple else "interleaved")
    ]
    if not parts:
        parts.append(_layout(np.empty((0, 2), dtype=np.int64), job, 1, simple=False, pins=pins))
    extra = {name: value for name, value in pins.items() if name not in _COLUMNS}
    settings = partial(_settings, precision=job.precision, gpus=cluster.gpus)
    return Space(library="smp-v1-tensorflow", layout=Layout.concatenate(parts), settings=settings, extra=extra)


def _layout(pairs: axes.Ints, job: Job, degree: int, *, simple: bool, pins: Mapping[str, Any]) -> Layout:
    return Layout.of_columns(
        amp(job),
        rows=len(pairs),
        pipeline_parallel_degree=degree,
        batch_samples=pairs[:, 0],
        microbatches=pairs[:, 1],
        active_microbatches=pairs[:, 1] if simple else np.minimum(degree + 2, pairs[:, 1]),
        simple_pipeline=simple,
        host_handover=True,
        spread_placement=pins.get("placement_strategy") == "spread",
    )
