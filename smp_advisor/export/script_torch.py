"""The training script for PyTorch FSDP and DDP, with or without SMP v2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.core.files import data_file, sentence
from smp_advisor.errors import ExportError
from smp_advisor.export.script_parts import DTYPES, Training, newest_release, packages_of, rows_file, unscripted
from smp_advisor.export.template import Comment
from smp_advisor.libraries.library import FULLY_SHARD_SINCE, supports_tensor_parallelism
from smp_advisor.libraries.sharding import RESHARDING
from smp_advisor.libraries.state_bytes import loss_in_parts
from smp_advisor.libraries.validation import unscripted_optimizer
from smp_advisor.libraries.version import has_plain_head, release
from smp_advisor.workload.stack import kernel_of

if TYPE_CHECKING:
    from smp_advisor.libraries.plan import Plan

_FP32_BYTES = 4
COMPILED = "torch-compile"
"""Kind of code with which the script compiles each block. With others, it is the code of transformers."""
_STEP_OPTIONS = {"loop": "foreach=False", "foreach": "foreach=True", "fused": "fused=True"}
_READ_SETTINGS = ("batch_size", "gradient_accumulation_steps")
"""Settings of a plan that the script reads; the others are built in."""
_SAVES_SINCE = (2, 4)
"""PyTorch release with ``async_save`` of replicas into files."""
_SELECTIVE_SINCE = (2, 5)
"""PyTorch release with ``create_selective_checkpoint_contexts``."""
_OWN_SAVER_SINCE = (2, 5)
"""Version of SMP v2 with asynchronous checkpoints (release notes)."""


def require(training: Training) -> None:
    """Raise `ExportError` for models that the library cannot divide, or that do not fit in host memory."""
    if _transforms(training) and not _library_initializes(training):
        raise unscripted(
            f"{training.library.title} does not support the family {training.model.family!r} with tensor, context or"
            " expert parallelism or fp8",
            "disable them",
        )
    # A limit of the generated script ends here, not on the cluster.
    job, plan = training.job, training.plan
    training.require_implemented(data_file("export", "scripts")["torch"])
    if objection := unscripted_optimizer(plan.library, job, plan.version):
        raise ExportError(objection)
    converts = training.model.family in data_file("export", "architectures")["converts_router"]
    if converts and plan.shards_parameters and plan.precision != "fp32":
        problem = f"The router of {training.model.family!r} computes in fp32, and FSDP reduces gradients of one type"
        raise unscripted(problem, "set library='ddp', or precision='fp32'")
    plain_head = training.architecture.task == "causal" and has_plain_head(training.model.family)
    if job.loss == "chunked" and (not plain_head or _transforms(training)):
        raise unscripted(
            "The generated script computes a chunked loss only for language models whose logits are not scaled and"
            " whose layers the library does not replace",
            "set loss='plain'",
        )
    if job.state_precision == "16-bit" and (plan.precision != "bf16" or _transforms(training)):
        problem = "The generated script trains with 16-bit states only in bf16 and without layers of the library"
        raise unscripted(problem, "set state_precision='mixed'")
    # Requirements of the container's PyTorch.
    framework = training.container.framework_version
    pytorch = release(framework)[:2]
    oldest = FULLY_SHARD_SINCE if plan.shards_parameters else _SAVES_SINCE
    if not training.library.smdistributed and pytorch < oldest:
        problem = f"The generated script requires PyTorch {'.'.join(map(str, oldest))} or later"
        raise unscripted(f"{problem}, and the container has {framework}", "choose a newer version of the library")
    if training.library.smdistributed and release(plan.version)[:2] < _OWN_SAVER_SINCE:
        problem = f"The generated script saves checkpoints with {training.library.title} 2.5 or later"
        raise unscripted(f"{problem}, not {plan.version}", "choose a newer version")
    if job.stack == COMPILED and (training.library.smdistributed or plan.activation_checkpointing == "operators"):
        problem = "The generated script compiles blocks with FSDP or DDP, without the checkpointing of single operators"
        raise unscripted(problem, "set stack='auto'")
    if plan.activation_checkpointing == "operators" and pytorch < _SELECTIVE_SINCE:
        raise ExportError(sentence("export", "operators", framework=framework))
    newest_release(framework, training.architecture)
    _building(training)


def requirements(training: Training) -> list[str]:
    """Return the packages missing from the container."""
    packages = [f"transformers=={newest_release(training.container.framework_version, training.architecture)}"]
    if training.library.smdistributed:
        packages.append("accelerate")
    if training.low_bits:
        packages += packages_of("low_bits", training.container.framework_version)
    if training.architecture.reads_text:
        packages += packages_of("plain", training.container.framework_version)
    kernel = kernel_of(training.model.family)
    if kernel is not None and kernel["requirement"]:
        packages.append(kernel["requirement"])
    return packages


def companions(training: Training) -> dict[str, str]:
    """Return the files next to the script: the reports of its steps, and the reader of rows."""
    if training.small_copy:
        return {}
    flags = {"chats": _chats(training), "norms": training.plan.precision != "fp16"}
    files = {"meter.py": training.render("train_meter.py.in", **flags)}
    return files | ({"rows.py": rows_file(training)} if training.architecture.reads_text else {})


def _chats(training: Training) -> bool:
    """Whether rows may be conversations, whose batches are shorter than full sequences."""
    return training.architecture.task == "causal" and training.job.tunes


def write(training: Training) -> str:
    """Generate the script."""
    plan, smp = training.plan, training.library.smdistributed
    sharded, building, pure = plan.shards_parameters, _building(training), training.job.state_precision == "16-bit"
    strategy = plan.sharding_strategy if sharded else ""
    shards = plan.shard_degree(training.cluster) if sharded else 1
    # Parameters and optimizer state are copied to be saved in the background, which torchao's states cannot be.
    in_thread = not (smp or training.low_bits)
    in_thread &= training.copies_fit((_FP32_BYTES + training.job.moment_bytes) / shards)
    causal, pairs = (training.architecture.task == task for task in ("causal", "sequence_to_sequence"))
    weighted = pairs or (causal and training.job.tunes) or training.architecture.task == "masked"
    # As the estimate counts.
    in_parts = causal and not smp and has_plain_head(training.model.family) and loss_in_parts(training.job)
    chunked = training.job.loss == "chunked" or in_parts
    checkpointing = str(plan.activation_checkpointing)
    # One layer of this many is checkpointed.
    period = int(checkpointing.removeprefix("every_")) if checkpointing.startswith("every_") else 1
    autocast = not sharded and not pure and plan.precision != "fp32"
    enters = autocast or _transforms(training)
    keeps_products = plan.activation_checkpointing == "operators"
    values = {
        "features": {
            "tensor_parallel": plan.tensor_parallel_degree > 1,
            "context_parallel": plan.context_parallel_degree > 1,
            "expert_parallel": plan.expert_parallel_degree > 1,
        },
        "tuning_note": Comment(", or export with training='fine-tuning'" if causal and not training.job.tunes else ""),
        "accumulation": plan.gradient_accumulation_steps,
        "sharding_strategy": Comment(strategy.upper()),
        "reshard_after_forward": strategy in RESHARDING,
        "model_dtype": Comment(DTYPES["bf16" if plan.precision == "bf16" else "fp32"]),
        "fixed_settings": {name: str(plan.hyperparameters[name]) for name in fixed_settings(plan)},
        "gathered_dtype": Comment("None" if pure or plan.precision == "fp32" else DTYPES[plan.precision]),
        "reduced_dtype": Comment(training.reduced_dtype),
        "share": Comment("* weights[part]" if weighted else "/ len(parts)"),
        "built_dtype": Comment(DTYPES[plan.precision if pure else "fp32"]),
        "backward": Comment("state.scaler.scale(loss).backward()" if plan.precision == "fp16" else "loss.backward()"),
        "clip": Comment(_clipping(training)),
        "loss": Comment("forward(model, batch)" if enters else 'model(**batch)["loss"]'),
        "wrapper": Comment("selective, " if keeps_products else "wrapper, " if plan.offload_activations else ""),
        "step_option": Comment(f", {option}" if (option := _step_option(training)) else ""),
        "checkpoint_period": Comment(str(period)),
        "is_checkpointed": Comment("id(module) in chosen" if period > 1 else "type(module) in layers"),
        "reads_text": training.architecture.reads_text,
        "chats": _chats(training),
        "pairs": pairs,
        # Rows may be prompts and completions or conversations, besides documents.
        "encodes": pairs or (causal and training.job.tunes),
        "weighted": weighted,
        "norms": plan.precision != "fp16",
        "smp": smp,
        "sharded": sharded,
        "accumulates": True,
        "chooses_checkpointing": False,
        "checks_launch": smp,
        "fsdp2": sharded and not smp,
        "has_experts": any(matmul.experts > 1 for group in training.model.groups for matmul in group.block.matmuls),
        "hybrid": "hybrid" in strategy,
        "saves_in_thread": in_thread,
        "compiles": training.job.stack == COMPILED,
        "autocast": autocast,
        "casts": plan.precision != "fp32" and not (pure and training.reduced_dtype != DTYPES["fp32"]),
        "builds_half": pure,
        "loads_first": building == "library" or _transforms(training),
        "chunked_loss": chunked,
        "delays_reduction": not sharded or training.job.unsharded_accumulation,
        "keeps_products": keeps_products,
        "checkpoints_some": period > 1,
        "fp8": smp and plan.fp8,
        "smddp": smp and plan.distributed_backend == "smddp",
        "transformed": _transforms(training),
        "expert_parallel": plan.expert_parallel_degree > 1,
        "shares_batches": plan.tensor_parallel_degree * plan.context_parallel_degree > 1,
        "offloads": plan.offload_activations,
        "delay_initialization": building == "library",
        "first_builds": building == "first process",
        "awaits_first": building != "every process" or _transforms(training),
    }
    return training.render("train_torch.py.in", **values)


def _step_option(training: Training) -> str:
    """How Adam steps. By default in one kernel, or by parameter after scaled losses: both need no memory for it."""
    default = "" if training.job.optimizer != "adam" else "loop" if training.plan.precision == "fp16" else "fused"
    chosen = training.job.optimizer_step
    return _STEP_OPTIONS.get(default if chosen == "auto" else chosen, "")


def _clipping(training: Training) -> str:
    """The call that clips the gradients: the library's own, that of FSDP1, or PyTorch's, which shards the norm, too."""
    of_fsdp1 = training.library.smdistributed and training.plan.shards_parameters and not _transforms(training)
    name = "model.clip_grad_norm_(" if of_fsdp1 else "clip_grad_norm_("
    model = "" if of_fsdp1 else "model, " if _transforms(training) else "model.parameters(), "
    is_shard = training.plan.shards_parameters and not training.library.smdistributed
    full = ".full_tensor()" if is_shard and training.plan.precision != "fp16" else ""
    return f"{name}{model}arguments.max_gradient_norm){full}"


def fixed_settings(plan: Plan) -> list[str]:
    """Script settings of a plan that the generated code has built in."""
    return [name for name in plan.hyperparameters if name not in _READ_SETTINGS]


def _transforms(training: Training) -> bool:
    """Return whether `tsm.transform` replaces layers, which parallelism within layers and fp8 require."""
    plan = training.plan
    degrees = (plan.tensor_parallel_degree, plan.context_parallel_degree, plan.expert_parallel_degree)
    return training.library.smdistributed and (max(degrees) > 1 or plan.fp8)


def _building(training: Training) -> str:
    """Where the model is built: in every process, layer by layer by the library, or in the first process only."""
    model, plan = training.model, training.plan
    delays, per_node = plan.delayed_parameter_initialization, training.cluster.gpus_per_node
    first = plan.shards_parameters and not _transforms(training)
    # PyTorch's first FSDP, of SMP v2, hands values on from GPU to GPU only: each process builds where there is room.
    if training.library.smdistributed and not delays:
        first &= not training.host_holds(_FP32_BYTES * model.parameter_count * per_node)
    copies = 1 if first else per_node
    enough = training.host_holds(_FP32_BYTES * model.parameter_count * copies)
    # A head without memory is not tied to the embedding any more.
    if _library_initializes(training) and not model.head.tied and (delays or not enough):
        return "library"
    if enough and (first or not delays):
        return "first process" if first else "every process"
    if enough:
        tied = " with a tied head" if model.head.tied else ""
        problem = f"The generated script does not delay the initialization of the family {model.family!r}{tied}"
        raise unscripted(problem, "set delayed_parameter_initialization=False")
    problem = f"{model.name!r} is too large for the host memory of a {training.cluster.instance.name}"
    builds = f"where {'the first' if first else 'every'} process builds the model"
    raise unscripted(f"{problem}, {builds}", "choose instances with more host memory")


def _library_initializes(training: Training) -> bool:
    return training.library.smdistributed and supports_tensor_parallelism(training.model.family, training.plan.library)
