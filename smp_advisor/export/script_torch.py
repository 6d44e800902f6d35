"""The training script for PyTorch FSDP and DDP, with or without SMP v2."""

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
    """Raise `ExportError` for models that the library cannot divide, or that do not fit in host memory."""
    if _transforms(plan) and not _library_initializes(model, plan):
        raise ExportError(
            f"SMP v2 does not support the family {model.family!r} with tensor, context or expert parallelism or fp8:"
            " disable them, or pass script= with your own script."
        )
    _building(model, cluster, plan)


def write(model: Model, cluster: Cluster, job: Job, plan: Plan, architecture: Architecture) -> str:
    """Generate the script."""
    smp = plan.library == "smp-v2"
    sharded = plan.library != "ddp"
    transforms = _transforms(plan)
    building = _building(model, cluster, plan)
    checkpoints = bool(plan.activation_checkpointing)
    strategy = plan.sharding_strategy.upper() if sharded else ""
    values = common_values(model, job, plan, architecture) | {
        "features": {
            "tensor_parallel": plan.tensor_parallel_degree > 1,
            "context_parallel": plan.context_parallel_degree > 1,
            "expert_parallel": plan.expert_parallel_degree > 1,
        },
        "accumulation": plan.gradient_accumulation_steps,
        "sharding_strategy": Comment(strategy),
        "wrapped": Comment("with sharded layers" if sharded else "with a full copy on every GPU"),
        # Activation offloading by the library requires reentrant checkpoints.
        "checkpoint_kind": Comment("REENTRANT" if smp and plan.offload_activations else "NO_REENTRANT"),
    }
    flags = common_flags(model, job, plan, architecture) | {
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
    """Whether `tsm.transform` replaces layers, which parallelism within layers and fp8 require."""
    degrees = (plan.tensor_parallel_degree, plan.context_parallel_degree, plan.expert_parallel_degree)
    return plan.library == "smp-v2" and (max(degrees) > 1 or bool(plan.fp8))


def _building(model: Model, cluster: Cluster, plan: Plan) -> str:
    """Where the model is built: in every process, layer by layer by the library, or in the first process only."""
    enough = copies_fit(model, cluster, _FP32_BYTES)
    requested = plan.library == "smp-v2" and bool(plan.delayed_parameter_initialization)
    if _library_initializes(model, plan) and (requested or not enough):
        return "library"
    if enough:
        return "every process"
    one_fits = copies_fit(model, cluster, _FP32_BYTES / cluster.gpus_per_node)
    # Tied parameters lose their connection in processes that start without values.
    if plan.library != "ddp" and one_fits and not model.head.tied and not _transforms(plan):
        return "first process"
    raise ExportError(
        f"{model.name!r} is too large for the host memory of a {cluster.instance.name}, where every process builds the"
        " model: choose instances with more host memory, or pass script= with your own script."
    )


def _library_initializes(model: Model, plan: Plan) -> bool:
    return plan.library == "smp-v2" and supports_tensor_parallelism(model.family, "smp-v2")
