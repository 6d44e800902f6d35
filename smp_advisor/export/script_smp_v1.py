"""The training script for SMP v1 with PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.errors import ExportError
from smp_advisor.export.architectures import Architecture, first_library_version
from smp_advisor.export.literal import Comment
from smp_advisor.export.script_parts import common_flags, common_values, copies_fit
from smp_advisor.export.template import render
from smp_advisor.libraries.families import supports_tensor_parallelism
from smp_advisor.libraries.version import image, release

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["require", "write"]

_DELAY_ABOVE_PARAMETERS = 100e9
"""Above this size, the developer guide ("Configuration Tips and Pitfalls") requires delayed initialization."""


def require(plan: Plan) -> None:
    """Raise `ExportError` for plans that the script does not support."""
    if release(plan.version) < release(first_library_version()):
        raise ExportError(
            f"The training script requires library version {first_library_version()} or later, and the plan uses"
            f" {plan.version}: choose a later version, or pass script= with your own script."
        )
    if plan.pipeline_parallel_degree > 1 and not plan.auto_partition:
        raise ExportError(
            "auto_partition=False requires a script that places layers on pipeline stages, which depends on the model:"
            " set auto_partition=True, or pass script= with your own script."
        )


def write(model: Model, cluster: Cluster, job: Job, plan: Plan, architecture: Architecture) -> str:
    """Generate the script."""
    container = image(plan.library, plan.version)
    sharded = plan.sharded_data_parallel_degree > 1
    values = common_values(model, job, plan, architecture) | {
        "library_version": Comment(plan.version),
        "framework_version": Comment(container.framework_version),
        "features": _features(plan),
    }
    flags = common_flags(model, job, plan, architecture) | {
        "half_inputs": plan.precision != "fp32",
        # Sharded data parallelism clips gradients itself; only fp16 has a norm over all partitions.
        "clip": plan.precision == "fp16" and not sharded,
        "checkpoints_activations": True,
        "sharded_data_parallel": sharded,
        "shard_optimizer_state": plan.shard_optimizer_state,
        "prescaled": plan.prescaled_batch,
        "tensor_parallel": plan.tensor_parallel_degree > 1,
        "tensor_parallel_family": supports_tensor_parallelism(model.family),
        "delay_initialization": _delays_initialization(model, cluster, plan),
    }
    return render("train_smp_v1.py.in", values=values, flags=flags)


def _features(plan: Plan) -> dict[str, bool]:
    return {
        "fp16": plan.precision == "fp16",
        "bf16": plan.precision == "bf16",
        "prescaled_batch": plan.prescaled_batch,
        "shard_optimizer_state": plan.shard_optimizer_state,
        "sharded_data_parallel": plan.sharded_data_parallel_degree > 1,
        "tensor_parallel": plan.tensor_parallel_degree > 1,
    }


def _delays_initialization(model: Model, cluster: Cluster, plan: Plan) -> bool:
    if plan.delayed_parameter_initialization:
        return False  # The parameter of the estimator enables it.
    bytes_per_parameter = 4 if plan.precision == "fp32" else 2
    return model.parameter_count > _DELAY_ABOVE_PARAMETERS or not copies_fit(model, cluster, bytes_per_parameter)
