"""The plan and the job of a row in public settings only, as a user of the advisor can give them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import AdvisorError
from smp_advisor.libraries import Plan
from smp_advisor.libraries.validation import mismatches
from smp_advisor.workload.job import OPTIMIZERS

from .frameworks import public_settings
from .optimizers import leaves_optimizer_open

if TYPE_CHECKING:
    from smp_advisor.cluster import Cluster
    from smp_advisor.workload import Job, Model

    from .degrees import Degrees
    from .optimizers import OptimizerColumn
    from .table import Row

__all__ = ["public_form"]

_CHECKPOINTING = {"": False, "none": False, "full": "each"}
_FSDP = {"zero3", "hybrid"}


def public_form(
    row: Row, model: Model, cluster: Cluster, job: Job, degrees: Degrees, column: OptimizerColumn
) -> tuple[Job, Plan] | None:
    """Job and plan of a row; None if no plan of a library and no setting of a job describes the row."""
    settings = _settings(row, cluster, degrees)
    if settings is None or column.master_gradients or column.fp32_accumulation or column.deepspeed:
        return None
    if "deepspeed" in row.text("framework") and row.text("shard_class") not in {"", "none"}:
        return None
    try:
        plan = Plan(**settings)
        job = _job(row, job, column, sharded=plan.shards_parameters)
    except AdvisorError:
        return None
    return None if next(mismatches(plan, cluster, model, job), None) else (job, plan)


def _settings(row: Row, cluster: Cluster, degrees: Degrees) -> dict[str, Any] | None:
    """Keywords of `Plan`, if a library has this division of model and state."""
    if "smp v1" in row.text("framework"):
        return _smp_v1(row, degrees)
    precision, accumulated = row.text("precision_class"), degrees.microbatches
    timed = row.positive("step_time_s") or row.positive("tokens_per_s_per_gpu")
    if row.count("num_microbatches") is None and not timed and public_settings(row).get("unsharded_accumulation"):
        accumulated = max(accumulated, 2)  # the library's recipes accumulate, and the row gives no number
    half = "fp16" if precision.startswith("fp16") else "bf16"
    settings: dict[str, Any] = {
        "batch_size": degrees.micro_batch,
        "gradient_accumulation_steps": accumulated,
        "precision": "fp32" if precision == "fp32" else half,
        "activation_checkpointing": _checkpointing(row),
    }
    if degrees.pipeline > 1 or settings["activation_checkpointing"] is None:
        return None
    shards, offload = row.text("shard_class"), row.text("offload")
    divided = degrees.tensor > 1 or degrees.context > 1 or (row.count("ep") or 1) > 1
    if shards in {"", "none"}:
        usable = not divided and offload in {"", "none"}
        return {"library": "ddp", **settings} if usable else None
    if "param" in offload or shards not in {*_FSDP, "zero2"}:
        return None
    group = row.count("shard_degree") or 0
    everywhere = group in {0, cluster.gpus}
    if not divided and offload in {"", "none"} and (everywhere or group == cluster.gpus_per_node):
        strategy = "shard_grad_op" if shards == "zero2" else "full_shard" if everywhere else "hybrid_shard"
        return {"library": "fsdp", "sharding_strategy": strategy, **settings}
    if shards == "zero2":
        return None
    return {
        "library": "smp-v2",
        **settings,
        "tensor_parallel_degree": degrees.tensor,
        "context_parallel_degree": degrees.context,
        "expert_parallel_degree": row.count("ep") or 1,
        "hybrid_shard_degree": 0 if everywhere else group,
        "offload_activations": "activation" in offload,
        "sm_activation_offloading": "offload_wrapper" not in offload,
    }


def _smp_v1(row: Row, degrees: Degrees) -> dict[str, Any] | None:
    shards = row.text("shard_class")
    if degrees.context > 1 or degrees.chunks > 1 or shards == "zero2" or _checkpointing(row) not in {False, "each"}:
        return None
    return {
        "library": "smp-v1",
        "tensor_parallel_degree": degrees.tensor,
        "pipeline_parallel_degree": degrees.pipeline,
        "microbatches": degrees.microbatches,
        "batch_size": degrees.micro_batch * degrees.microbatches,
        "prescaled_batch": degrees.tensor > 1,
        "shard_optimizer_state": shards == "zero1",
        "sharded_data_parallel_degree": row.count("shard_degree") or degrees.replicas if shards in _FSDP else 1,
        "activation_checkpointing": _checkpointing(row),
        "offload_activations": "activation" in row.text("offload"),
        "fp16": row.text("precision_class").startswith("fp16"),
        "bf16": row.text("precision_class").startswith("bf16"),
    }


def _checkpointing(row: Row) -> str | bool | None:
    """Value of the plan's setting. "Selective" recomputation of fused attention is that of every other block."""
    recompute = row.text("recompute_class")
    if recompute == "selective-attention":
        return "every_2" if row.text("attention_class").startswith("flash") else None
    if recompute == "selective-other":  # torchtitan's two kinds
        return "operators" if "op" in row.text("recompute") else "every_2"
    return _CHECKPOINTING.get(recompute)


def _job(row: Row, job: Job, column: OptimizerColumn, *, sharded: bool) -> Job:
    """The job with the documented settings of the row's library."""
    known = public_settings(row)
    changes: dict[str, Any] = {}
    # PEFT's preparation leaves adapters in fp32, which train under autocast.
    adapts = job.adapter is not None and not job.adapter.upcast
    if row.text("precision_class").endswith("pure") or adapts:
        if column.state_bits == 32:
            raise AdvisorError("16-bit parameters with fp32 optimizer state")
        changes["state_precision"] = "16-bit"
    changes |= {name: known[name] for name in ("loss", "autocast") if name in known}
    if sharded and row.count("num_microbatches") != 1:
        changes["unsharded_accumulation"] = bool(known.get("unsharded_accumulation"))
        changes["gradient_reduction"] = known.get("gradient_reduction", "auto")
    if job.adapter is None and leaves_optimizer_open(row):
        changes |= {name: known[name] for name in ("optimizer", "paged_optimizer", "optimizer_step") if name in known}
    elif column.fused and OPTIMIZERS[job.optimizer].steps:
        changes["optimizer_step"] = "fused"
    elif "optimizer" not in known and "optimizer_step" in known:
        changes["optimizer_step"] = known["optimizer_step"]
    if sharded and "separate_embeddings" in known:
        changes["separate_embeddings"] = known["separate_embeddings"]
    return replace(job, **changes)
