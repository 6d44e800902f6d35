"""The training script for PyTorch FSDP and DDP, with or without SMP v2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.errors import ExportError
from smp_advisor.export.architectures import newest_release
from smp_advisor.export.literal import Comment
from smp_advisor.export.script_parts import common_flags, common_values, copies_fit
from smp_advisor.export.template import render
from smp_advisor.libraries.families import supports_tensor_parallelism

if TYPE_CHECKING:
    from smp_advisor.export.script_parts import Training

__all__ = ["require", "requirements", "write"]

_FP32_BYTES = 4


def require(training: Training) -> None:
    """Raise `ExportError` for models that the library cannot divide, or that do not fit in host memory."""
    if _transforms(training) and not _library_initializes(training):
        raise ExportError(
            f"{training.library.title} does not support the family {training.model.family!r} with tensor, context or"
            " expert parallelism or fp8: disable them, or pass script= with your own script."
        )
    _building(training)


def requirements(training: Training) -> list[str]:
    """Packages missing from the container."""
    packages = [f"transformers=={newest_release(training.container.framework_version)}"]
    return [*packages, "accelerate"] if training.library.smdistributed else packages


def write(training: Training) -> str:
    """Generate the script."""
    plan, smp = training.plan, training.library.smdistributed
    sharded, checkpoints = plan.shards_parameters, bool(plan.activation_checkpointing)
    building = _building(training)
    values = common_values(training) | {
        "features": {
            "tensor_parallel": plan.tensor_parallel_degree > 1,
            "context_parallel": plan.context_parallel_degree > 1,
            "expert_parallel": plan.expert_parallel_degree > 1,
        },
        "accumulation": plan.gradient_accumulation_steps,
        "sharding_strategy": Comment((plan.sharding_strategy or "full_shard").upper()),
        "wrapped": Comment("with sharded layers" if sharded else "with a full copy on every GPU"),
        # Activation offloading by the library requires reentrant checkpoints.
        "checkpoint_kind": Comment("REENTRANT" if smp and plan.offload_activations else "NO_REENTRANT"),
    }
    flags = common_flags(training) | {
        "smp": smp,
        "sharded": sharded,
        "autocast": not sharded and plan.precision != "fp32",
        "fp8": smp and plan.fp8,
        "smddp": smp and plan.distributed_backend == "smddp",
        "transformed": _transforms(training),
        "expert_parallel": plan.expert_parallel_degree > 1,
        "shares_batches": plan.tensor_parallel_degree * plan.context_parallel_degree > 1,
        "offloads": plan.offload_activations,
        "finds_layers": sharded or checkpoints,
        "delay_initialization": building == "library",
        "first_builds": building == "first process",
    }
    return render("train_torch.py.in", values=values, flags=flags)


def _transforms(training: Training) -> bool:
    """Whether `tsm.transform` replaces layers, which parallelism within layers and fp8 require."""
    plan = training.plan
    degrees = (plan.tensor_parallel_degree, plan.context_parallel_degree, plan.expert_parallel_degree)
    return training.library.smdistributed and (max(degrees) > 1 or plan.fp8)


def _building(training: Training) -> str:
    """Where the model is built: in every process, layer by layer by the library, or in the first process only."""
    model, instance, plan = training.model, training.cluster.instance, training.plan
    enough = copies_fit(training, _FP32_BYTES)
    if _library_initializes(training) and (plan.delayed_parameter_initialization or not enough):
        return "library"
    if enough:
        return "every process"
    one_fits = copies_fit(training, _FP32_BYTES / training.cluster.gpus_per_node)
    # Tied parameters lose their connection in processes that start without values.
    if plan.shards_parameters and one_fits and not model.head.tied and not _transforms(training):
        return "first process"
    raise ExportError(
        f"{model.name!r} is too large for the host memory of a {instance.name}, where every process builds the model:"
        " choose instances with more host memory, or pass script= with your own script."
    )


def _library_initializes(training: Training) -> bool:
    return training.library.smdistributed and supports_tensor_parallelism(training.model.family, training.plan.library)
