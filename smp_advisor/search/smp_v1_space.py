"""Every plan of SMP v1 on a cluster, as columns."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from smp_advisor.costs.layout import Layout, checkpoint_strategy, sharded_default
from smp_advisor.costs.recipe import smp_v1
from smp_advisor.library.families import supports_prescaled_batch
from smp_advisor.search import axes
from smp_advisor.search.space import Space

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["enumerate_smp_v1"]

_COLUMNS = frozenset(
    {
        "activation_checkpointing",
        "active_microbatches",
        "batch_size",
        "microbatches",
        "offload_activations",
        "pipeline",
        "pipeline_parallel_degree",
        "prescaled_batch",
        "shard_optimizer_state",
        "sharded_data_parallel_degree",
        "tensor_parallel_degree",
    }
)
"""Plan fields that a row decides; any other pinned field is passed on to the plan as it is."""


def _settings(at: Mapping[str, Any], *, precision: str, prescaled: bool) -> dict[str, Any]:
    """Fields of the plan of a row.

    Parameters
    ----------
    prescaled
        Whether tensor-parallel plans feed the whole group (``prescaled_batch``) or each rank a share.
    """
    tp, pp = at["tensor_parallel_degree"], at["pipeline_parallel_degree"]
    prescaled = prescaled and tp > 1
    # Every published example of sharded data parallelism sets these two: parameters are made already sharded.
    sharded = at["shard_level"] == 3
    return {
        "tensor_parallel_degree": tp,
        "pipeline_parallel_degree": pp,
        "sharded_data_parallel_degree": at["shard_degree"] if sharded else 1,
        "shard_optimizer_state": at["shard_level"] == 1,
        "microbatches": at["microbatches"],
        "active_microbatches": at["active_microbatches"] if pp > 1 else None,
        "pipeline": "simple" if at["simple_pipeline"] else "interleaved",
        "prescaled_batch": prescaled,
        "offload_activations": at["offload_activations"],
        "batch_size": at["batch_samples"] // (1 if prescaled else tp),
        "activation_checkpointing": checkpoint_strategy(at["checkpoint_layers"]),
        "skip_tracing": sharded,
        "delayed_parameter_initialization": sharded,
        "fp16": precision == "fp16",
        "bf16": precision == "bf16",
    }


def enumerate_smp_v1(model: Model, cluster: Cluster, job: Job, pins: Mapping[str, Any]) -> Space:
    """All plans of SMP v1 on the cluster, none left out for being unpromising.

    Axes: tensor and pipeline parallel degrees that divide the cluster and the model, optimizer-state sharding, sharded
    data parallel degrees, checkpointing strategies, offloading, batch, microbatches, active microbatches and both
    pipeline schedules. Where an axis has too many values for all to be tried, `axes` says which are. Twins that cost
    the same under another name are listed once: a batch per tensor-parallel group stands for the same batch brought by
    its ranks, and ``placement_strategy="cluster"`` keeps a tensor-parallel group together.

    Parameters
    ----------
    pins
        Plan fields held at a value.
    """
    # A prescaled batch needs optimize="speed".
    can_prescale = supports_prescaled_batch(model.family) and pins.get("optimize") != "memory"
    prescaled = bool(pins.get("prescaled_batch", can_prescale))
    sequence = model.sequence_length(job.sequence_length)
    parts = []
    for tp in axes.tensor_degrees(model, cluster, pins):
        if prescaled and sequence % tp:
            continue
        for pp in axes.pipeline_degrees(model, cluster, tp, pins):
            replicas = cluster.gpus // (tp * pp)
            pairs = axes.batches(job, sequence, replicas, 1 if prescaled else tp, pins)
            if not len(pairs):
                continue
            rows = axes.rows(pairs, tp, pp, -(-model.layer_count // pp), pins)
            parts += [_layout(rows, job, tp, pp, one, pins) for one in axes.shardings(job, cluster, tp, pp, pins)]
    if not parts:
        parts.append(_layout(np.empty((0, 6), dtype=np.int64), job, 1, 1, (False, 1), pins))
    extra = {name: value for name, value in pins.items() if name not in _COLUMNS}
    settings = partial(_settings, precision=job.precision, prescaled=prescaled)
    return Space(library="smp-v1", layout=Layout.concatenate(parts), settings=settings, extra=extra)


def _layout(
    rows: NDArray[np.int64], job: Job, tp: int, pp: int, sharding: tuple[bool, int], pins: Mapping[str, Any]
) -> Layout:
    """Columns of the plans that share degrees and sharding (optimizer state, sharded data parallel degree)."""
    state, degree = sharding
    return Layout.of_columns(
        smp_v1(job),
        rows=len(rows),
        tensor_parallel_degree=tp,
        pipeline_parallel_degree=pp,
        shard_level=3 if degree > 1 else int(state),
        shard_degree=degree if degree > 1 else 0,
        batch_samples=rows[:, 0],
        microbatches=rows[:, 1],
        active_microbatches=rows[:, 2],
        simple_pipeline=rows[:, 3],
        checkpoint_layers=rows[:, 4],
        offload_activations=rows[:, 5],
        activation_loading_horizon=pins.get("activation_loading_horizon") or 4,
        split_checkpoints=pins.get("optimize") == "memory" and tp > 1,
        max_live_parameters=pins.get("sdp_max_live_parameters") or sharded_default("max_live_parameters"),
        reduce_bucket_elements=pins.get("sdp_reduce_bucket_size") or sharded_default("reduce_bucket_elements"),
        host_handover=True,
        gather_after_step=True,
        spread_placement=pins.get("placement_strategy") == "spread",
    )
