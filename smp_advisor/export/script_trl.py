"""The fine-tuning script on TRL's trainers, for PyTorch FSDP and DDP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.errors import ExportError
from smp_advisor.export.architectures import adapter_packages, newest_release, trl_packages
from smp_advisor.export.script_parts import common_flags, common_values, copies_fit, unimplemented
from smp_advisor.export.script_torch import adapter_flags, adapter_values, fixed_settings
from smp_advisor.export.template import Comment, gathered, render

if TYPE_CHECKING:
    from smp_advisor.export.script_parts import Training

_IMPLEMENTED = {
    "loss": ("chunked",),
    "state_precision": ("16-bit",),
    "optimizer_step": ("fused",),
    "unsharded_accumulation": (True,),
    "separate_embeddings": (True,),
}
"""Values of the job's training settings besides the defaults that TRL's trainers have as well."""
_OBJECTIVES = {
    # Objective: title, class of the settings, class of the trainer.
    "sft": ("supervised fine-tuning", "SFTConfig", "SFTTrainer"),
    "dpo": ("direct preference optimization (DPO)", "DPOConfig", "DPOTrainer"),
}


def trainer_of(training: Training, trainer: str | None) -> str:
    """The trainer of a script: ``trl`` for fine-tuning with a plan that TRL can follow, else ``plain``.

    Raises
    ------
    ExportError
        The requested trainer or objective does not train the plan.
    """
    if training.objective not in _OBJECTIVES or trainer not in (None, "trl", "plain"):
        raise ExportError(
            f"trainer must be 'trl' or 'plain', and objective 'sft' or 'dpo', not {trainer!r} and"
            f" {training.objective!r}."
        )
    job, preferences = training.job, training.objective == "dpo"
    if trainer == "plain" and (preferences or _shards_quantized(training)):
        what = "has no objective 'dpo'" if preferences else "does not shard a quantized base"
        raise ExportError(f"The plain script {what}: leave out trainer=.")
    if trainer == "plain" or not (trainer or preferences or job.adapter or job.training == "fine-tuning"):
        return "plain"
    objection = _objection(training)
    if not objection:
        return "trl"
    if trainer is None and not (preferences or _shards_quantized(training)):
        return "plain"
    raise ExportError(
        f"The script on TRL's trainers does not train this plan: {objection}. Change the plan, or pass script="
        " with your own script."
    )


def trainer_note(training: Training, trainer: str | None) -> str:
    """The trainer of fine-tuning, in a sentence, and why it is not TRL's; `trainer` is the requested one."""
    if training.trainer == "trl":
        return f"Trainer: {_OBJECTIVES[training.objective][2]} of TRL."
    if trainer == "plain":
        return "Trainer: the PyTorch loop of the script, as requested."
    return f"Trainer: the PyTorch loop of the script. TRL is not used: {_objection(training)}."


def _shards_quantized(training: Training) -> bool:
    return training.job.adapter is not None and training.job.adapter.quantized and _sharded(training)


def _sharded(training: Training) -> bool:
    return training.plan.shards_parameters


def _objection(training: Training) -> str:
    """Why TRL's trainers cannot train exactly the plan, as a clause; empty if they can."""
    job, plan = training.job, training.plan
    setting = unimplemented(training, _IMPLEMENTED)
    if training.library.script != "torch" or training.library.smdistributed:
        return f"it uses FSDP or DDP, not {training.library.title}"
    if training.architecture.task != "causal":
        return f"it trains language models, not {training.architecture.title}"
    if not trl_packages(training.container.framework_version):
        return f"its transformers require PyTorch 2.11 or later, not {training.container.framework_version}"
    if plan.precision == "fp16" or job.optimizer != "adam" or setting:
        return f"it trains in bf16 or fp32 with Adam, without {setting or plan.precision}"
    if plan.activation_checkpointing not in (False, "each"):
        return f"it checkpoints all layers or none, not {plan.activation_checkpointing!r}"
    return _too_small(training)


def _too_small(training: Training) -> str:
    """Why the batch or the memory does not suffice, as a clause; empty if they do."""
    plan = training.plan
    if training.objective == "dpo" and plan.batch_size % 2:
        return f"a pair of preferences has two sequences, and batch_size is {plan.batch_size}"
    if not copies_fit(training, _loaded_bytes(training)):
        return "the host memory is too small to load the model"
    return ""


def _base_bytes(training: Training) -> int:
    """Bytes per parameter of the model as it is loaded: fp32 unless frozen, or trained in 16 bits."""
    half = training.job.adapter is not None or training.job.state_precision == "16-bit"
    return 2 if half and training.plan.precision == "bf16" else 4


def _loaded_bytes(training: Training) -> float:
    """Bytes per parameter in host memory, as a mean of the processes of a node.

    With FSDP, only the first process has values, but the reference model of preferences is in every process, because
    TRL computes its checksum.
    """
    if not _sharded(training):
        return _base_bytes(training)
    has_reference = training.objective == "dpo" and not _shards_quantized(training)
    reference = (2 if training.plan.precision == "bf16" else 4) if has_reference else 0
    return reference + _base_bytes(training) / training.cluster.gpus_per_node


def requirements(training: Training) -> list[str]:
    """Packages missing from the container."""
    version, adapter = training.container.framework_version, training.job.adapter
    packages = [f"transformers=={newest_release(version, training.architecture)}", *trl_packages(version)]
    return packages + adapter_packages(version, quantized=adapter is not None and adapter.quantized)


def write(training: Training) -> str:
    """Generate the script."""
    plan, sharded, quantized = training.plan, _sharded(training), _shards_quantized(training)
    title, config_class, trainer_class = _OBJECTIVES[training.objective]
    common = common_values(training)
    values = common | {
        "objective": Comment(title),
        "config_class": Comment(config_class),
        "trainer_class": Comment(trainer_class),
        "accumulation": plan.gradient_accumulation_steps,
        "epochs": float(training.usual_epochs),
        "fixed_settings": {name: str(plan.hyperparameters[name]) for name in fixed_settings(plan)},
        "flops_per_token": float(f"{float(str(common['flops_per_sample'])) / training.sequence_length:.6g}"),
        # Parameters in bf16 need no autocast.
        "bf16": plan.precision == "bf16" and training.job.state_precision == "mixed",
        "reshard_after_forward": sharded and plan.sharding_strategy in ("full_shard", "hybrid_shard"),
        "nodes": training.cluster.nodes,
        "gpus_per_node": training.cluster.gpus_per_node,
        "checkpoints": bool(plan.activation_checkpointing),
        "reduces_each": not training.job.unsharded_accumulation,
        "base_dtype": "bfloat16" if _base_bytes(training) == 2 else "float32",
        "sequences": Comment("2 * " if training.objective == "dpo" else ""),
        **adapter_values(training),
    }
    flags = common_flags(training) | {
        "sharded": sharded,
        "hybrid": sharded and "hybrid" in plan.sharding_strategy,
        "preferences": training.objective == "dpo",
        "in_step": sharded and quantized,
        "reference": training.objective == "dpo" and sharded and not quantized,
        "starts_pretrained": True,
        **adapter_flags(training),
    }
    return gathered(render("train_trl.py.in", values=values, flags=flags))
