"""SMP v1 with PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.core.elementwise import inverted, where
from smp_advisor.core.files import sentence
from smp_advisor.libraries.groups import nearest_divisor
from smp_advisor.libraries.layout import Layout, checkpoint_columns
from smp_advisor.libraries.library import Library
from smp_advisor.libraries.schema import SIMPLE, default_active_microbatches, default_of
from smp_advisor.libraries.smp_v1.plan import CONTROLS, SmpV1Controls, SmpV1Plan
from smp_advisor.libraries.space import (
    Space,
    batches,
    pipeline_degrees,
    schedule_rows,
    shardings,
    takes_prescaled_batch,
    tensor_degrees,
)
from smp_advisor.libraries.state_bytes import smp_v1, trained
from smp_advisor.libraries.version import default_version, release

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.core.elementwise import Floats
    from smp_advisor.libraries.layout import PlanColumns
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model


def layout(plans: PlanColumns, job: Job, cluster: Cluster | None = None) -> Layout:
    tensor, pipeline = plans["tensor_parallel_degree"], plans["pipeline_parallel_degree"]
    shards, microbatches, active = (
        plans["sharded_data_parallel_degree"],
        plans["microbatches"],
        plans["active_microbatches"],
    )
    simple = plans["pipeline"] == SIMPLE
    in_flight = where(active == 0, default_active_microbatches(pipeline, microbatches), active)
    return Layout.of_columns(
        trained(smp_v1(job), job),
        rows=plans.rows,
        tensor_parallel_degree=tensor,
        pipeline_parallel_degree=pipeline,
        shard_level=where(shards > 1, 3, plans["shard_optimizer_state"]),
        shard_degree=where(shards > 1, shards, 0),
        # Without prescaled_batch, every rank of a tensor-parallel group reads a batch, and the group processes all of
        # them together.
        batch_samples=plans["batch_size"] * where(plans["prescaled_batch"], 1, tensor),
        microbatches=microbatches,
        active_microbatches=where(simple, microbatches, in_flight),
        simple_pipeline=simple,
        **checkpoint_columns(plans["activation_checkpointing"]),
        offload_activations=plans["offload_activations"],
        activation_loading_horizon=_or_default(plans, "activation_loading_horizon"),
        split_checkpoints=(plans["optimize"] == "memory") & (tensor > 1),
        max_live_parameters=_or_default(plans, "sdp_max_live_parameters"),
        reduce_bucket_elements=_or_default(plans, "sdp_reduce_bucket_size"),
        two_level_gather=plans["sdp_hierarchical_allgather"],
        overlapped_gather=(cluster is not None and cluster.nodes > 1 and cluster.instance.name == _OWN_GATHER_INSTANCE)
        & (plans["ddp_dist_backend"] == 0),
        replicas_reduced_once=True,
        host_handover=True,
        gather_after_step=True,
        traced_on_gpu=inverted(plans["skip_tracing"]) & (pipeline > 1),
        spread_placement=plans["placement_strategy"] == "spread",
    )


_OWN_GATHER_INSTANCE = "ml.p4d.24xlarge"
"""Instance on which ``ddp_dist_backend="auto"`` uses SMDDP's all-gather, across nodes (documentation of the library's
sharded data parallelism; from version 1.13)."""


def _or_default(plans: PlanColumns, name: str) -> Floats:
    values = plans[name]
    return where(values == 0, default_of(name), values)


def cluster_mismatches(plan: Plan, cluster: Cluster, replicas: int) -> Iterator[str]:
    shards = plan.sharded_data_parallel_degree
    if replicas % shards:
        # Ranks of a tensor-parallel group have different slices, so only replicas share shards.
        divided = "data-parallel degree" if plan.tensor_parallel_degree == 1 else "reduced data-parallel degree"
        values = {"shards": shards, "divided": divided, "replicas": replicas, "cluster": cluster}
        yield sentence("libraries", "sharded_degree", **values, near=nearest_divisor(replicas, shards))


def model_mismatches(plan: Plan, model: Model, job: Job | None) -> Iterator[str]:
    degree = plan.tensor_parallel_degree
    if job is not None and plan.prescaled_batch:
        length = model.sequence_length(job.sequence_length)
        if length % degree:
            near = length // degree * degree or degree
            yield sentence("libraries", "prescaled_sequence", length=length, degree=degree, near=near)


_TECHNIQUES = (
    "tensor_parallel_degree",
    "pipeline_parallel_degree",
    "sharded_data_parallel_degree",
    "shard_optimizer_state",
    "activation_checkpointing",
    "offload_activations",
)
_FIELDS = (
    *_TECHNIQUES,
    "skip_tracing",
    "prescaled_batch",
    "batch_size",
    "microbatches",
    "active_microbatches",
    "pipeline",
)
"""Fields that the search varies. Other pinned fields are passed to the plan."""


def space(model: Model, cluster: Cluster, job: Job, pins: Mapping[str, Any]) -> Space:
    """Return all plans of SMP v1 on the cluster, including unpromising ones."""
    shared = {
        "fp16": job.precision == "fp16",
        "bf16": job.precision == "bf16",
        **{name: value for name, value in pins.items() if name not in _FIELDS},
    }
    return Space.of_blocks(
        "smp-v1", cluster, job, _FIELDS, _blocks(model, cluster, job, pins), shared, finish=_with_related_fields
    )


def _blocks(model: Model, cluster: Cluster, job: Job, pins: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    sequence = model.sequence_length(job.sequence_length)
    optimize = pins.get("optimize", "speed")
    for tp in tensor_degrees(model, cluster, pins):
        can_prescale = takes_prescaled_batch(model.family, sequence, tp, optimize)
        prescaled = bool(pins.get("prescaled_batch", can_prescale))
        if prescaled and sequence % tp:
            continue
        for pp in pipeline_degrees(model, cluster, tp, pins):
            group = 1 if prescaled else tp
            pairs = batches(job, sequence, cluster.gpus // (tp * pp), group, pins)
            if not len(pairs):
                continue
            untraceable = pp > 1 and _is_untraceable(model, cluster, job, tp, pins)
            rows = schedule_rows(pairs, tp, pp, -(-model.layer_count // pp), pins)
            for state, degree in shardings(job, cluster, tp, pp, pins):
                yield (
                    len(rows),
                    {
                        "tensor_parallel_degree": tp,
                        "pipeline_parallel_degree": pp,
                        "shard_optimizer_state": state,
                        "sharded_data_parallel_degree": degree,
                        "skip_tracing": pins.get("skip_tracing", degree > 1 or untraceable),
                        "prescaled_batch": prescaled and tp > 1,
                        "batch_size": rows[:, 0] // group,
                        "microbatches": rows[:, 1],
                        "active_microbatches": rows[:, 2],
                        "pipeline": rows[:, 3],
                        "activation_checkpointing": rows[:, 4],
                        "offload_activations": rows[:, 5].astype(bool),
                    },
                )


_TRACED_SHARE = 0.9
"""Share of a GPU that a traced model may take, next to the context and a forward pass of one block."""


def _is_untraceable(model: Model, cluster: Cluster, job: Job, tp: int, pins: Mapping[str, Any]) -> bool:
    """Return whether one GPU cannot hold the model that the library traces, and the library can do without."""
    traced = (4 if job.precision == "fp32" else 2) * model.parameter_count / tp
    room = _TRACED_SHARE * cluster.instance.usable_gpu_memory_gib * 2**30
    return traced > room and release(pins.get("version") or default_version("smp-v1")) >= (1, 6)


def _with_related_fields(settings: dict[str, Any]) -> dict[str, Any]:
    if settings["pipeline_parallel_degree"] == 1:
        settings["active_microbatches"] = None
    # Every published example of sharded data parallelism sets this and skip_tracing: parameters are created sharded.
    return {**settings, "delayed_parameter_initialization": settings["sharded_data_parallel_degree"] > 1}


LIBRARY = Library(
    name="smp-v1",
    package=__name__,
    plan=SmpV1Plan,
    layout=layout,
    stack="smp-v1",
    space=space,
    cluster_mismatches=cluster_mismatches,
    model_mismatches=model_mismatches,
    launcher="mpi",
    default_precision="fp16",
    half_precision="fp16",
    default_attention="eager",
    smdistributed=True,
    replication="ddp",
    script="smp_step",
    training_settings=frozenset({"loss"}),
    restricts_families=True,
    shard_field="sharded_data_parallel_degree",
    shards_beside=("pipeline_parallel_degree", "tensor_parallel_degree"),
    controls=CONTROLS,
    control_codec=SmpV1Controls(),
    reported=(*_TECHNIQUES, "batch_size", "microbatches", "active_microbatches"),
    alternatives=(*_TECHNIQUES, "microbatches"),
)
