"""The training script for SMP v1 with PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.errors import ExportError
from smp_advisor.export.architectures import first_library_version, patched_release
from smp_advisor.export.facts import launch_facts
from smp_advisor.export.literal import Comment
from smp_advisor.export.script_imports import gathered
from smp_advisor.export.script_parts import (
    common_flags,
    common_values,
    copies_fit,
    require_auto_partition,
    require_implemented,
)
from smp_advisor.export.template import render
from smp_advisor.libraries.families import supports_tensor_parallelism
from smp_advisor.libraries.version import release

if TYPE_CHECKING:
    from smp_advisor.export.script_parts import Training
    from smp_advisor.libraries.plan import Plan

__all__ = ["require", "requirements", "write"]

_GATHERS_SHARDS = release("1.15.0")


def require(training: Training) -> None:
    """Raise `ExportError` for plans that the script does not support."""
    plan = training.plan
    require_implemented(training, {})
    patched_release(training.architecture)
    if release(plan.version) < release(first_library_version()):
        raise ExportError(
            f"The training script requires library version {first_library_version()} or later, and the plan uses"
            f" {plan.version}: choose a later version, or pass script= with your own script."
        )
    if plan.pipeline_parallel_degree > 1:
        require_auto_partition(plan)


def requirements(training: Training) -> list[str]:
    """Packages missing from the container."""
    return [f"transformers=={patched_release(training.architecture)}"]


def write(training: Training) -> str:
    """Generate the script."""
    plan = training.plan
    values = common_values(training) | {
        "library_version": Comment(plan.version),
        "framework_version": Comment(training.container.framework_version),
        "features": _features(plan),
    }
    flags = common_flags(training) | {
        "half_inputs": plan.precision != "fp32",
        # Sharded data parallelism clips gradients itself; only fp16 has a norm over all partitions.
        "clip": plan.precision == "fp16" and not plan.shards_parameters,
        "checkpoints_activations": True,
        "sharded_data_parallel": plan.shards_parameters,
        "shard_optimizer_state": plan.shard_optimizer_state,
        "prescaled": plan.prescaled_batch,
        "tensor_parallel": plan.tensor_parallel_degree > 1,
        "tensor_parallel_family": supports_tensor_parallelism(training.model.family, plan.library),
        "delay_initialization": _delays_initialization(training),
        # The library gathers sharded parameters since 1.15 (its release notes).
        "gathers": not plan.shards_parameters or release(plan.version) >= _GATHERS_SHARDS,
        # Conversations are not read: each microbatch counts equally, so all must have the same number of targets.
        "reads_text": training.architecture.task == "causal",
        "tracks": True,
        "starts_pretrained": True,
        "evaluates": True,
    }
    return gathered(render("train_smp_v1.py.in", values=values, flags=flags))


def _features(plan: Plan) -> dict[str, bool]:
    return {
        "fp16": plan.precision == "fp16",
        "bf16": plan.precision == "bf16",
        "prescaled_batch": plan.prescaled_batch,
        "shard_optimizer_state": plan.shard_optimizer_state,
        "sharded_data_parallel": plan.shards_parameters,
        "tensor_parallel": plan.tensor_parallel_degree > 1,
    }


def _delays_initialization(training: Training) -> bool:
    if training.plan.delayed_parameter_initialization:
        return False  # The parameter of the estimator enables it.
    bytes_per_parameter = 4 if training.plan.precision == "fp32" else 2
    largest = launch_facts()["smp_v1"]["undelayed_parameters"]
    return training.model.parameter_count > largest or not copies_fit(training, bytes_per_parameter)
