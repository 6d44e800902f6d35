"""The fine-tuning script on TRL's trainers, for PyTorch FSDP and DDP."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import yaml

from smp_advisor.core.files import data_file, sentence
from smp_advisor.core.words import plural
from smp_advisor.costs.phases import load_host_bytes
from smp_advisor.errors import ExportError
from smp_advisor.export.script_parts import DTYPES, Training, newest_release, packages_of, rows_file
from smp_advisor.export.script_torch import COMPILED, fixed_settings
from smp_advisor.export.template import Comment, render
from smp_advisor.libraries.layout import layout_of_plan
from smp_advisor.libraries.sharding import accelerate_settings

if TYPE_CHECKING:
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job

_OBJECTIVES = (("SFT", "supervised fine-tuning"), ("DPO", "direct preference optimization (DPO)"))


def paired(job: Job, plan: Plan, objective: str | None) -> tuple[Job, Plan]:
    """Return the job with its objective, and the plan with full pairs: an odd batch has one more sequence."""
    if objective not in (None, "sft", "dpo"):
        raise ExportError(f"objective must be 'sft' or 'dpo', not {objective!r}.")
    if objective is not None and (objective == "dpo") != (job.training == "dpo"):
        job = replace(job, training="dpo" if objective == "dpo" else "fine-tuning")
    if job.training != "dpo" or not plan.batch_size % 2:
        return job, plan
    parts = plan.gradient_accumulation_steps
    halved = plan.batch_size == 1 and parts % 2 == 0
    parts = parts // 2 if halved else parts
    return job, replace(plan, batch_size=plan.batch_size + 1, gradient_accumulation_steps=parts)


def trainer_of(training: Training, trainer: str | None) -> str:
    """Return the trainer of a script: ``trl`` for fine-tuning with a plan that TRL can follow, else ``plain``."""
    if trainer not in (None, "trl", "plain"):
        raise ExportError(f"trainer must be 'trl' or 'plain', not {trainer!r}.")
    job = training.job
    only = "preferences" if training.prefers else "adapters" if job.adapter is not None else ""
    if only and trainer == "plain":
        raise ExportError(f"The plain script trains no {only}: leave out trainer=.")
    if trainer == "plain" or not (trainer or job.tunes):
        return "plain"
    objection = _objection(training)
    if not objection:
        return "trl"
    if trainer is None and not only:
        return "plain"
    raise ExportError(sentence("export", "not_by_trl", objection=objection))


def trainer_note(training: Training, trainer: str | None) -> str:
    """Return the trainer of fine-tuning, in a sentence, and why it is not TRL's; `trainer` is the requested one."""
    if training.trainer == "trl":
        note = f"Trainer: {_OBJECTIVES[training.prefers][0]}Trainer of TRL."
        if not training.prefers:
            return note
        pairs, once = plural(training.plan.batch_size // 2, "pair"), not _shards_quantized(training)
        runs = "runs over all rows once before the first step" if once else "without the adapter runs in every step"
        return (
            f"{note} A pair has two sequences: {pairs} per GPU and microbatch. The frozen model {runs}, which takes"
            " about a third of an epoch's time more."
        )
    if trainer == "plain":
        return "Trainer: the PyTorch loop of the script, as requested."
    return f"Trainer: the PyTorch loop of the script. TRL is not used: {_objection(training)}."


def _shards_quantized(training: Training) -> bool:
    return training.job.adapter is not None and training.job.adapter.quantized and training.plan.shards_parameters


def _objection(training: Training) -> str:
    """Return why TRL's trainers cannot train exactly the plan, as a clause; empty if they can."""
    job, plan, family = training.job, training.plan, training.model.family
    setting, pytorch = (
        training.unimplemented(data_file("export", "scripts")["trl"]),
        training.container.framework_version,
    )
    quantized = job.adapter is not None and job.adapter.quantized
    no_parts = data_file("workload", "adapters")["without_loss_in_parts"]
    # accelerate 1.15 resumes no scaled gradients of FSDP 2. TRL 1.16 trains adapters of a quantized base in bf16.
    in_fp16 = plan.shards_parameters or quantized or job.state_precision != "mixed"
    as_exported = replace(job, stack="auto")
    layout = layout_of_plan(plan, as_exported, training.cluster)
    loaded_bytes = load_host_bytes(training.model, training.cluster, as_exported, layout)
    reasons = {
        f"it uses FSDP or DDP, not {training.library.title}": training.library.script != "torch"
        or training.library.smdistributed,
        f"it trains language models, not {training.architecture.title}": training.architecture.task != "causal",
        f"its loss in parts does not find the base model of {family!r}": family in no_parts,
        f"its transformers require PyTorch 2.11 or later, not {pytorch}": not packages_of("trl", pytorch),
        "it compiles no single blocks": job.stack == COMPILED,
        f"it trains with Adam, without {setting or job.optimizer}": job.optimizer != "adam" or setting,
        "it trains in fp16 with DDP only, with 32-bit states and no quantized base": plan.precision == "fp16"
        and in_fp16,
        "it trains adapters with 32-bit states": job.adapter is not None and job.state_precision != "mixed",
        f"it checkpoints all layers or none, not {plan.activation_checkpointing!r}": plan.activation_checkpointing
        not in (False, "each"),
        "the host memory is too small to load the model": not training.host_holds(loaded_bytes),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _base_bytes(training: Training) -> int:
    """Return the bytes per parameter of the model as it is loaded: fp32 unless frozen, or trained in 16 bits."""
    half = training.job.adapter is not None or training.job.state_precision == "16-bit"
    return 2 if half and training.plan.precision != "fp32" else 4


def requirements(training: Training) -> list[str]:
    """Return the packages missing from the container."""
    version, adapter = training.container.framework_version, training.job.adapter
    packages = [f"transformers=={newest_release(version, training.architecture)}", *packages_of("trl", version)]
    quantized = adapter is not None and adapter.quantized
    return packages if quantized else [name for name in packages if not name.startswith("bitsandbytes")]


def settings(training: Training) -> dict[str, Any]:
    """Return the plan as plain data, which the script reads.

    ``settings`` are those of the trainer and of ``ModelConfig``, and defaults for the hyperparameters of the job, whose
    other names are in ``names``. A job with another value of a ``fixed`` one, or weights with other ``sizes``, is
    refused.
    """
    plan, adapter, preferences = training.plan, training.job.adapter, training.prefers
    sharded, checkpoints = plan.shards_parameters, bool(plan.activation_checkpointing)
    model = {"model_type": training.model.family} | training.configuration
    sizes = {
        name: value
        for name, value in model.items()
        if isinstance(value, int | str) and not name.endswith("token_id") and not training.small_copy
    }
    batch = plan.batch_size // 2 if preferences else plan.batch_size  # a pair has two sequences
    chosen: dict[str, Any] = {
        "per_device_train_batch_size": batch,
        "per_device_eval_batch_size": batch,
        "gradient_accumulation_steps": plan.gradient_accumulation_steps,
        "max_length": training.sequence_length,
        "dtype": DTYPES[plan.precision if _base_bytes(training) == 2 else "fp32"].removeprefix("torch."),
        # Parameters in bf16 need no autocast.
        "bf16": plan.precision == "bf16" and training.job.state_precision == "mixed",
        "fp16": plan.precision == "fp16",
        # FSDP has its own.
        "activation_checkpointing": checkpoints and not sharded,
        "optim": "adamw_torch_fused",
        "num_train_epochs": float(training.usual_epochs),
        "learning_rate": 0.0001,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.1,  # below 1: a share of the steps
        "weight_decay": 0.01,
        "output_dir": "/opt/ml/checkpoints",
        "save_steps": 0,  # never
        "save_total_limit": 2,
        "logging_first_step": True,
        "logging_nan_inf_filter": False,
        "disable_tqdm": True,
        "ddp_timeout": 7200,  # one process tokenizes, the others wait
    }
    if preferences:
        # Before training, so that no reference model is in memory while it trains. Over a quantized base that is
        # sharded, each step runs the base without the adapter.
        chosen["precompute_ref_log_probs"] = not _shards_quantized(training)
    else:
        chosen["dataset_kwargs"] = {"skip_prepare_dataset": True}  # rows are token ids with labels
    if adapter is not None:
        chosen |= {
            "use_peft": True,
            "lora_r": adapter.rank,
            "lora_alpha": adapter.alpha or 2 * adapter.rank,
            # PEFT has no dropout in experts.
            "lora_dropout": 0.05 if adapter.dropout and not adapter.adapts_experts(training.model) else 0.0,
            "lora_target_modules": "all-linear" if adapter.targets == "all-linear" else sorted(adapter.module_names),
        }
        if adapter.base_bits == 4:
            # FSDP shards floating-point values.
            chosen |= {"load_in_4bit": True, "use_bnb_nested_quant": adapter.double_quantization}
            chosen["bnb_4bit_quant_storage"] = "bfloat16"
        elif adapter.quantized:
            chosen["load_in_8bit"] = True
    if sharded:
        chosen.update(fsdp=True, fsdp_config=accelerate_settings(plan))
        # Without it, gradients stay unsharded until the last accumulated batch.
        reduction = {"sync_each_batch": not training.job.unsharded_accumulation}
        chosen["accelerator_config"] = {"gradient_accumulation_kwargs": reduction}
    content: dict[str, Any] = {
        "settings": chosen,
        "fixed": {name: str(plan.hyperparameters[name]) for name in ("batch_size", *fixed_settings(plan))},
        "names": dict(data_file("export", "scripts")["trl_names"]),
        "sizes": sizes,
        "model": {name: value for name, value in model.items() if name not in sizes},
    }
    if not preferences:
        # Token ids of one step, for a job without data.
        rows = plan.batch_size * plan.gradient_accumulation_steps * training.cluster.gpus
        content["noise"] = {"high": training.model.shape.vocab, "size": [rows, training.sequence_length]}
    if sharded and "hybrid" in plan.sharding_strategy:
        # Shards on the GPUs of a node, and a replica per node.
        cluster = training.cluster
        content["groups"] = {"dp_replicate_size": cluster.nodes, "dp_shard_size": cluster.gpus_per_node}
    if not training.small_copy:
        # Without recomputation, and of the dense peak of the plan's GPU.
        speed = training.flops
        content["flops_per_token"] = float(f"{speed['flops_per_sample'] / training.sequence_length:.6g}")
        content |= {"peak_tflops": speed["peak_tflops"], **training.pace}
    return content


def companions(training: Training) -> dict[str, str]:
    """Return the files next to the script: the plan, the callback that reports its steps, and the reader of rows."""
    plan = yaml.safe_dump(settings(training), sort_keys=False)
    return {"train.yaml": plan, "report.py": render("report.py.in"), "rows.py": rows_file(training)}


def write(training: Training) -> str:
    """Generate the script."""
    sharded, preferences, content = training.plan.shards_parameters, training.prefers, settings(training)
    values = {
        "objective": Comment(_OBJECTIVES[preferences][1]),
        "kind": Comment(_OBJECTIVES[preferences][0]),
        "settings": content,
        "sharded": sharded,
        "reduced_dtype": Comment(training.reduced_dtype),
        "gathered_dtype": Comment(DTYPES["bf16"] if content["settings"]["bf16"] else "None"),
        "casts": sharded and training.plan.precision != "fp32",
        "hybrid": "groups" in content,
        "preferences": preferences,
        "chats": not preferences,
        "reference": preferences and sharded and not _shards_quantized(training),
        "adapter": (adapter := training.job.adapter) is not None,
        "quantized": adapter is not None and adapter.quantized,
        "counts_experts": "num_local_experts" in training.configuration,
    }
    return training.render("train_trl.py.in", **values)
