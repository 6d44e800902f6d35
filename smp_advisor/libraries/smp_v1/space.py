"""All plans of SMP v1 on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.libraries import axes
from smp_advisor.libraries.smp_v1.batches import takes_prescaled_batch
from smp_advisor.libraries.space import Space

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["space"]

_FIELDS = (
    "tensor_parallel_degree",
    "pipeline_parallel_degree",
    "shard_optimizer_state",
    "sharded_data_parallel_degree",
    "prescaled_batch",
    "batch_size",
    "microbatches",
    "active_microbatches",
    "pipeline",
    "activation_checkpointing",
    "offload_activations",
)
"""Fields that the search varies. Other pinned fields are passed to the plan."""


def space(model: Model, cluster: Cluster, job: Job, pins: Mapping[str, Any]) -> Space:
    """All plans of SMP v1 on the cluster, including unpromising ones.

    Axes: tensor and pipeline parallel degrees that divide the cluster and the model, optimizer-state sharding, sharded
    data parallel degrees, checkpointing strategies, offloading, batch, microbatches, active microbatches and both
    pipeline schedules. For axes with too many values, `axes` selects some. Equivalent plans appear once: a
    batch per tensor-parallel group represents the same samples in batches of its ranks, and
    ``placement_strategy="cluster"`` keeps a tensor-parallel group together.

    Parameters
    ----------
    pins
        Fixed fields of the plan.
    """
    shared = {
        "fp16": job.precision == "fp16",
        "bf16": job.precision == "bf16",
        **{name: value for name, value in pins.items() if name not in _FIELDS},
    }
    return Space.of_blocks(
        "smp-v1", cluster, job, _FIELDS, _blocks(model, cluster, job, pins), shared, finish=_with_related_fields
    )


def _blocks(model: Model, cluster: Cluster, job: Job, pins: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Blocks of plans with the same degrees and sharding."""
    sequence = model.sequence_length(job.sequence_length)
    optimize = pins.get("optimize", "speed")
    for tp in axes.tensor_degrees(model, cluster, pins):
        can_prescale = takes_prescaled_batch(model.family, sequence, tp, optimize)
        prescaled = bool(pins.get("prescaled_batch", can_prescale))
        if prescaled and sequence % tp:
            continue
        for pp in axes.pipeline_degrees(model, cluster, tp, pins):
            group = 1 if prescaled else tp
            pairs = axes.batches(job, sequence, cluster.gpus // (tp * pp), group, pins)
            if not len(pairs):
                continue
            rows = axes.rows(pairs, tp, pp, -(-model.layer_count // pp), pins)
            for state, degree in axes.shardings(job, cluster, tp, pp, pins):
                yield (
                    len(rows),
                    {
                        "tensor_parallel_degree": tp,
                        "pipeline_parallel_degree": pp,
                        "shard_optimizer_state": state,
                        "sharded_data_parallel_degree": degree,
                        "prescaled_batch": prescaled and tp > 1,
                        "batch_size": rows[:, 0] // group,
                        "microbatches": rows[:, 1],
                        "active_microbatches": rows[:, 2],
                        "pipeline": rows[:, 3],
                        "activation_checkpointing": rows[:, 4],
                        "offload_activations": rows[:, 5].astype(bool),
                    },
                )


def _with_related_fields(settings: dict[str, Any]) -> dict[str, Any]:
    """Fields of a plan, with those that follow from them."""
    if settings["pipeline_parallel_degree"] == 1:
        settings["active_microbatches"] = None
    # Every published example of sharded data parallelism sets these two: parameters are created sharded.
    sharded = settings["sharded_data_parallel_degree"] > 1
    return {**settings, "skip_tracing": sharded, "delayed_parameter_initialization": sharded}
