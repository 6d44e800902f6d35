"""Configurations published as working on SageMaker. The cost model must predict that they fit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from smp_advisor.errors import AdvisorError
from smp_advisor.libraries.layout import Layout
from smp_advisor.libraries.state_bytes import fully_sharded, over_frozen, smp_v1
from smp_advisor.workload import Adapter, Job

from .machines import instance_cluster_of
from .models import model_of
from .optimizers import optimizer_column
from .plans import PREFETCHED_UNITS, Run
from .state_bytes import megatron, pure
from .table import SkippedError

if TYPE_CHECKING:
    from smp_advisor.libraries.state_bytes import StateBytes

    from .table import Row

__all__ = ["known_good_run"]


def known_good_run(row: Row) -> Run:
    """Configuration of a row of the table of configurations published as working."""
    cluster = instance_cluster_of(row, nodes=row.count("instances") or 1)
    sequence = row.count("seq")
    if not sequence:
        raise SkippedError("sequence length not given")
    precision = row.text("precision") or "bf16"
    first = row.text("smp_version") == "1"
    try:
        job = Job(
            sequence_length=sequence,
            precision="fp16" if precision.startswith("fp16") else "fp32" if precision.startswith("fp32") else "bf16",
            fp8=precision.startswith("fp8"),
            optimizer=optimizer_column(row).optimizer,
            # PyTorch 1.x, the base of SMP v1, has no fused attention unless the script adds it.
            attention="fused" if row.text("attention").startswith("flash") or not first else "eager",
            adapter=_adapter(row),
        )
        model = model_of(row)
        state = over_frozen(_state_bytes(row, job, first=first), job)
        layout = Layout.of_columns(state, **_columns(row, cluster.gpus, first=first))
    except AdvisorError as error:
        raise SkippedError(f"job that cannot be expressed: {error}") from error
    return Run(model, cluster, job, layout)


def _adapter(row: Row) -> Adapter | None:
    peft = row.text("peft")
    if not peft:
        return None
    bits: Literal[16, 8, 4] = 4 if "4bit" in peft else 8 if "8bit" in peft else 16
    return Adapter(rank=16, targets="query-value", base_bits=bits, before_transformers_5=True)


def _state_bytes(row: Row, job: Job, *, first: bool) -> StateBytes:
    if job.adapter is not None:
        return pure(job)
    if first:
        return smp_v1(job)
    if _level(row) == 3:
        return fully_sharded(job)
    # NeMo's distributed Adam stores gradients in the type of their reduction.
    return replace(megatron(job), gradient_bytes=2, reduced_bytes=2)


def _level(row: Row) -> int:
    """Sharding level. Sharded data parallelism divides all state, unless the row has sharded optimizer state."""
    if row.flag("shard_optimizer_state"):
        return 1
    if (row.count("sharded_data_parallel_degree") or 0) > 1:
        return 3
    # Megatron's and NeMo's recipes train with the distributed optimizer.
    return 1 if row.text("smp_version").startswith("nemo") else 0


def _columns(row: Row, gpus: int, *, first: bool) -> dict[str, int | bool]:
    tensor = row.count("tensor_parallel_degree") or 1
    pipeline = row.count("pipeline_parallel_degree") or 1
    context = row.count("context_parallel_degree") or 1
    if gpus % (tensor * pipeline * context):
        raise SkippedError("parallel degrees do not divide the number of GPUs")
    replicas = gpus // (tensor * pipeline * context)
    group, degree = replicas * context, row.count("sharded_data_parallel_degree") or 0
    batch, global_batch = row.count("train_batch_size_per_gpu_or_rdp"), row.count("global_batch")
    if batch is None and not global_batch:
        raise SkippedError("batch not given")
    microbatches = row.count("microbatches") or 1
    if batch is None:
        microbatches = batch = max(1, round((global_batch or 0) / replicas))
    elif first:
        # Without prescaled_batch, the ranks of a tensor-parallel group process their batches together.
        batch *= tensor if row.flag("prescaled_batch") is False else 1
    else:
        # The batch is that of one microbatch. The global batch is accumulated from several.
        microbatches = max(microbatches, round(global_batch / (replicas * batch))) if global_batch else microbatches
        batch *= microbatches
    level = _level(row)
    active = row.count("active_microbatches") or min(pipeline + 2, microbatches)
    return {
        "tensor_parallel_degree": tensor,
        "sequence_parallel": tensor > 1 and not first,
        "pipeline_parallel_degree": pipeline,
        "context_parallel_degree": context,
        "expert_parallel_degree": row.count("expert_parallel_degree") or 1,
        "shard_level": level,
        "shard_degree": degree if level and 1 < degree < group and group % degree == 0 else 0,
        "prefetched_units": PREFETCHED_UNITS if level == 3 and not first else 0,
        "batch_samples": batch,
        "microbatches": microbatches,
        "active_microbatches": active,
        "depth_bounds_activations": not first,
        "checkpoint_layers": int(bool(row.flag("activation_checkpointing"))),
        "offload_running": not first,
        "experts_beside_shards": not first,
        "offload_activations": bool(row.flag("activation_offloading")),
        "activation_loading_horizon": row.count("activation_loading_horizon") or 4,
        "pipeline_outermost": not first,
    }
