"""A measured run as the cost model sees it: its conditions, predictions and measurements."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from smp_advisor.core import GIB
from smp_advisor.costs.evaluate import kinds_bytes, trained
from smp_advisor.costs.learned import REPEAT, repeat_gib, targets
from smp_advisor.costs.memory import memory_error_squares, needed_bytes
from smp_advisor.costs.step_time import Step, step_of
from smp_advisor.costs.world import World, vocabulary_shards
from smp_advisor.workload.calibration import MEMORY_QUANTITIES, MeasuredRun

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.core.elementwise import Floats
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.workload.calibration import MemoryKind
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

_CLASSES: dict[str, Literal["allocated", "reserved", "total"]] = {"allocated": "allocated", "reserved": "reserved"}


def observed(
    model: Model,
    cluster: Cluster,
    job: Job,
    layout: Layout,
    *,
    step_seconds: float | None = None,
    step_error: float = 0.0,
    memory_gib: float | None = None,
    memory_kind: MemoryKind = "",
    source: str = "figures of the user",
    notes: tuple[str, ...] = (),
) -> MeasuredRun:
    """A run of one plan; `memory_gib` is the highest peak of a GPU, or what a run that ran out of memory needed."""
    job, model = replace(job, calibration=None), trained(model, job)
    predicted = sum(_number(part) for part in predicted_step(model, cluster, job, layout).seconds.values())
    run: dict[str, object] = {}
    if memory_gib is not None or memory_kind == "out of memory":
        run = _memory(model, cluster, job, layout, memory_gib, memory_kind)
    return MeasuredRun(
        conditions=targets(model, cluster, job, layout).first,
        source=source,
        notes=notes,
        step_seconds=step_seconds,
        step_noise=float(np.hypot(REPEAT, step_error)),
        predicted_seconds=0.0 if step_seconds is None else float(f"{predicted:.9g}"),
        **run,  # type: ignore[arg-type]
    )


def predicted_step(model: Model, cluster: Cluster, job: Job, layout: Layout) -> Step:
    """Step time of one plan by part, without what runs of the user teach."""
    world = World.of(model, cluster, job, layout)
    return step_of(model, cluster, job, layout, world, int(_number(layout.pipeline_parallel_degree)))


def _number(value: Floats) -> float:
    """Return a number, or the only value of a column."""
    return float(np.asarray(value).reshape(-1)[0])


def _memory(
    model: Model, cluster: Cluster, job: Job, layout: Layout, gib: float | None, kind: MemoryKind
) -> dict[str, object]:
    """Return the fields of the measured memory, for the stage with the highest predicted one."""
    of = _CLASSES.get(kind, "total")
    shards = vocabulary_shards(model, layout)
    usable = cluster.instance.usable_gpu_memory_gib
    outside = {"allocated": ("allocator_reserve", "context"), "reserved": ("context",), "total": ()}[of]
    world = World.of(model, cluster, job, layout)
    kinds = kinds_bytes(model, job, layout, world, int(_number(layout.pipeline_parallel_degree)))

    def predicted(by: dict[str, Floats]) -> float:
        if kind == "out of memory":
            return _number(needed_bytes(by))
        return sum(_number(values) for name, values in by.items() if name not in outside)

    largest = max((by for _, by, _ in kinds), key=predicted)
    squares = memory_error_squares(largest, shards, model.activation_band, of=of)
    return {
        "memory_kind": kind or "total",
        "memory_gib": max(usable, gib or 0.0) if kind == "out of memory" or gib is None else gib,
        "memory_noise_gib": repeat_gib(usable if gib is None else gib),
        "predicted_gib": float(f"{predicted(largest) / GIB:.9g}"),
        "memory_errors_gib": tuple(float(f"{_number(squares[name]) ** 0.5 / GIB:.9g}") for name in MEMORY_QUANTITIES),
    }
