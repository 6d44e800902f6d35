"""The training script of a plan, and the cell that writes it; those of SMP v1 and Training Compiler."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from smp_advisor.errors import ExportError
from smp_advisor.export import script_torch, script_trl
from smp_advisor.export.architectures import architecture_of, patched_release
from smp_advisor.export.checks import unscripted
from smp_advisor.export.script_parts import (
    Training,
    common_flags,
    common_values,
    copies_fit,
    require_auto_partition,
    require_implemented,
)
from smp_advisor.export.template import Comment, gathered, render
from smp_advisor.files import data_file
from smp_advisor.job_rules import SCRIPT_NAME
from smp_advisor.libraries.library import supports_tensor_parallelism
from smp_advisor.libraries.validation import unscripted_adapter
from smp_advisor.libraries.version import oldest_script_release, release, version_on

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model


def _require_keras(training: Training) -> None:
    """Raise `ExportError` for models other than GPT-2, and for plans that the script does not support."""
    family, architecture, precision = training.model.family, training.architecture, training.plan.precision
    if family != "gpt2" or architecture.task != "causal":
        raise unscripted(
            f"The TensorFlow script supports only next-token prediction with the family 'gpt2', not"
            f" {architecture.title} with {family!r}"
        )
    if precision != "fp32":
        raise unscripted(f"The TensorFlow script trains in fp32, not {precision}")
    require_auto_partition(training.plan)


def _write_keras(training: Training) -> str:
    """Generate the script."""
    shape, sequence_length = training.model.shape, training.sequence_length
    values = common_values(training) | {
        "sizes": {
            "vocabulary": shape.vocab,
            "positions": sequence_length if training.lacks_positions else training.positions or sequence_length,
            "width": shape.hidden,
            "layers": shape.layers,
            "heads": shape.heads,
            "feed_forward": shape.ffn,
        },
    }
    flags = common_flags(training) | {
        "clip": False,
        "horovod": bool(training.plan.ddp),
        "full_batches": True,
        "tensorflow": True,
    }
    return gathered(render("train_smp_v1_tensorflow.py.in", values=values, flags=flags))


def _require_trainer(training: Training) -> None:
    """Raise `ExportError` for jobs and models that the script does not support."""
    title = training.library.title
    if training.job.optimizer != "adam":
        raise unscripted(f"The training script for {title} uses Adam, not {training.job.optimizer!r}")
    if patched_release(training.architecture) != oldest_script_release():
        family = training.model.family
        problem = f"The transformers release in the {title} containers does not support the family {family!r}"
        raise unscripted(problem, "choose another library")


def _write_trainer(training: Training) -> str:
    """Generate the script."""
    values = common_values(training) | {"evaluation_note": Comment("")}
    flags = common_flags(training) | {"evaluates": False}
    return gathered(render("train_compiler.py.in", values=values, flags=flags))


def _require_smp_v1(training: Training) -> None:
    """Raise `ExportError` for plans that the script does not support."""
    plan = training.plan
    require_implemented(training, {})
    patched_release(training.architecture)
    first = str(data_file("export", "architectures")["release"]["first_library"])
    for does, oldest in (
        ("requires library version {} or later", first),
        # The library gathers sharded parameters since then (its release notes).
        ("saves sharded models with library version {} or later", "1.15" if plan.shards_parameters else first),
    ):
        if release(plan.version) < release(oldest):
            problem = f"The training script {does.format(oldest)}, and the plan uses {plan.version}"
            raise unscripted(problem, "choose a later version")
    if plan.pipeline_parallel_degree > 1:
        require_auto_partition(plan)


def _patched_transformers(training: Training) -> list[str]:
    """Packages missing from the container."""
    present = training.container.transformers_version
    return [] if present else [f"transformers=={patched_release(training.architecture)}"]


def _write_smp_v1(training: Training) -> str:
    """Generate the script."""
    plan, images = training.plan, training.architecture.task == "image_classification"
    inputs = ("pixel_values",) if images else ("input_ids", "attention_mask")
    values = common_values(training) | {
        "inputs": Comment(", ".join(inputs)),
        "keywords": Comment(", ".join(f"{name}={name}" for name in inputs)),
        "features": {
            "fp16": plan.precision == "fp16",
            "bf16": plan.precision == "bf16",
            "prescaled_batch": plan.prescaled_batch,
            "shard_optimizer_state": plan.shard_optimizer_state,
            "sharded_data_parallel": plan.shards_parameters,
            "tensor_parallel": plan.tensor_parallel_degree > 1,
        },
    }
    flags = common_flags(training) | {
        "half_inputs": plan.precision != "fp32",
        # Sharded data parallelism clips gradients itself; only fp16 has a norm over all partitions.
        "clip": plan.precision == "fp16" and not plan.shards_parameters,
        "checks_launch": True,
        "sharded_data_parallel": plan.shards_parameters,
        "shard_optimizer_state": plan.shard_optimizer_state,
        "prescaled": plan.prescaled_batch,
        "tensor_parallel": plan.tensor_parallel_degree > 1,
        "tensor_parallel_family": supports_tensor_parallelism(training.model.family, plan.library),
        "delay_initialization": _delays_initialization(training),
        "full_batches": True,
    }
    return gathered(render("train_smp_v1.py.in", values=values, flags=flags))


def _delays_initialization(training: Training) -> bool:
    if training.plan.delayed_parameter_initialization:
        return False  # The parameter of the estimator enables it.
    bytes_per_parameter = 4 if training.plan.precision == "fp32" else 2
    largest = data_file("export", "launch")["smp_v1"]["undelayed_parameters"]
    return training.model.parameter_count > largest or not copies_fit(training, bytes_per_parameter)


_KINDS = {
    # Function that raises `ExportError` for a run that the script does not support, one for the packages missing from
    # the container, and the writer of the script.
    "torch": (script_torch.require, script_torch.requirements, script_torch.write),
    "smp_step": (_require_smp_v1, _patched_transformers, _write_smp_v1),
    "keras": (_require_keras, lambda _: [], _write_keras),
    "trainer": (_require_trainer, _patched_transformers, _write_trainer),
    # `trainer_of` chooses it only for plans that it trains.
    "trl": (lambda _: None, script_trl.requirements, script_trl.write),
}


def builds(model: Model) -> bool:
    """Whether the model has a transformers configuration, from which a script can be generated."""
    return model.config_json.strip() not in ("", "{}")


def script_cell(
    model: Model, cluster: Cluster, job: Job, plan: Plan, *, trainer: str | None = None, objective: str | None = None
) -> str:
    """Cell that writes the training script; empty if the model is defined by the user's code.

    It runs before the job cell, which packs the script together with its requirements, and has the same `trainer` and
    `objective`.
    """
    if not builds(model):
        return ""
    script = training_script(model, cluster, job, plan, trainer=trainer, objective=objective)
    return f"%%writefile {SCRIPT_NAME}\n{script}"


def training_script(
    model: Model,
    cluster: Cluster,
    job: Job,
    plan: Plan,
    *,
    trainer: str | None = None,
    objective: str | None = None,
    small_copy: bool = False,
) -> str:
    """Complete training script for `model` with the library and the techniques of `plan`.

    Precision, kind of sharding, prescaled batch and task are fixed in the script. It reads degrees, microbatches and
    sizes from the job, and stops immediately if the two disagree.
    A `small_copy` stands for a larger model, whose weights it cannot load.
    """
    return written(writable(model, cluster, job, plan, trainer=trainer, objective=objective, small_copy=small_copy))


def written(training: Training) -> str:
    """The script of a training run."""
    return _KINDS[_kind(training)][2](training)


def companions(training: Training) -> dict[str, str]:
    """Texts of the files next to the script, which the cell of the job writes, by name; empty without any."""
    return script_trl.companions(training) if training.trainer == "trl" else {}


def requirements(training: Training) -> str:
    """``requirements.txt`` of the generated script: packages missing from its container."""
    return "".join(f"{package}\n" for package in _KINDS[_kind(training)][1](training))


def _kind(training: Training) -> str:
    return "trl" if training.trainer == "trl" else training.library.script


def writable(
    model: Model,
    cluster: Cluster,
    job: Job,
    plan: Plan,
    *,
    trainer: str | None = None,
    objective: str | None = None,
    small_copy: bool = False,
) -> Training:
    """The training run, if a script can be generated for it; else raise `ExportError`."""
    if not builds(model):
        problem = f"No training script can be generated for {model.name!r}"
        raise unscripted(f"{problem}, which has no transformers configuration")
    if job.optimizer not in {"adam", "sgd"}:
        problem = "The generated script trains with Adam or SGD"
        raise unscripted(f"{problem}, and the job has the optimizer {job.optimizer!r}")
    if objection := unscripted_adapter(plan.library, job, model, cluster.instance):
        raise ExportError(objection)
    plan = replace(plan, version=version_on(plan.library, plan.version, cluster.instance))
    training = Training(
        model=model,
        cluster=cluster,
        job=job,
        plan=plan,
        architecture=architecture_of(model),
        objective=objective or "sft",
        small_copy=small_copy,
    )
    training = replace(training, trainer=script_trl.trainer_of(training, trainer))
    if training.lacks_positions and model.origin != "inferred":
        raise ExportError(
            f"{model.name!r} has {training.positions} positions and cannot train on sequences of"
            f" {training.sequence_length} tokens: shorten the sequence, or describe the model with more positions."
        )
    _KINDS[_kind(training)][0](training)
    return training
