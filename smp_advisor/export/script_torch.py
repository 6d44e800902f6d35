"""The training script of PyTorch's own data parallelism, with or without SMP v2 around it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.errors import ExportError
from smp_advisor.export.literal import Comment
from smp_advisor.export.script_parts import common_flags, common_values, copies_fit
from smp_advisor.export.template import render
from smp_advisor.libraries.families import supports_tensor_parallelism

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.export.architectures import Architecture
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["require", "write"]

_FP32_BYTES = 4


def require(model: Model, cluster: Cluster, plan: Plan) -> None:
    """Refuse models that cannot be built where the job runs."""
    if _transforms(plan) and not _library_initializes(model, plan):
        raise ExportError(
            f"SMP v2 has no form of the family {model.family!r} to divide: leave out tensor, context and expert"
            " parallelism and fp8, or pass script= with your own."
        )
    _building(model, cluster, plan)


def write(model: Model, cluster: Cluster, job: Job, plan: Plan, known: Architecture) -> str:
    """Write the script out."""
    smp = plan.library == "smp-v2"
    sharded = plan.library != "ddp"
    transforms = _transforms(plan)
    building = _building(model, cluster, plan)
    checkpoints = bool(plan.activation_checkpointing)
    strategy = plan.sharding_strategy.upper() if sharded else ""
    values = common_values(model, job, plan, known) | {
        "features": {
            "tensor_parallel": plan.tensor_parallel_degree > 1,
            "context_parallel": plan.context_parallel_degree > 1,
            "expert_parallel": plan.expert_parallel_degree > 1,
        },
        "accumulation": plan.gradient_accumulation_steps,
        "sharding_strategy": Comment(strategy),
        "wrapped": Comment("its layers sharded" if sharded else "a whole copy on every GPU"),
        # The library's own offloading needs reentrant checkpoints.
        "checkpoint_kind": Comment("REENTRANT" if smp and plan.offload_activations else "NO_REENTRANT"),
    }
    flags = common_flags(model, job, plan, known) | {
        "smp": smp,
        "sharded": sharded,
        "autocast": not sharded and plan.precision != "fp32",
        "fp8": smp and plan.fp8,
        "smddp": smp and plan.distributed_backend == "smddp",
        "transformed": transforms,
        "expert_parallel": plan.expert_parallel_degree > 1,
        "shares_batches": plan.tensor_parallel_degree * plan.context_parallel_degree > 1,
        "offloads": plan.offload_activations,
        "finds_layers": sharded or checkpoints,
        "delay_initialization": building == "library",
        "first_builds": building == "first process",
    }
    return render("train_torch.py.in", values=values, flags=flags)


def _transforms(plan: Plan) -> bool:
    """Whether `tsm.transform` replaces the model: what divides layers, and fp8, need the library's form of them."""
    degrees = (plan.tensor_parallel_degree, plan.context_parallel_degree, plan.expert_parallel_degree)
    return plan.library == "smp-v2" and (max(degrees) > 1 or bool(plan.fp8))


def _building(model: Model, cluster: Cluster, plan: Plan) -> str:
    """Who builds the model: every process, the library piece by piece, or the first process for all."""
    enough = copies_fit(model, cluster, _FP32_BYTES)
    wanted = plan.library == "smp-v2" and bool(plan.delayed_parameter_initialization)
    if _library_initializes(model, plan) and (wanted or not enough):
        return "library"
    if enough:
        return "every process"
    one_fits = copies_fit(model, cluster, _FP32_BYTES / cluster.gpus_per_node)
    # Shards of one parameter under two names lose each other where a process starts without values.
    if plan.library != "ddp" and one_fits and not model.head.tied and not _transforms(plan):
        return "first process"
    raise ExportError(
        f"{model.name!r} is too large to be built by every process of a {cluster.instance.name} in host memory: choose"
        " instances with more of it, or pass script= with your own."
    )


def _library_initializes(model: Model, plan: Plan) -> bool:
    return plan.library == "smp-v2" and supports_tensor_parallelism(model.family, "smp-v2")
