"""The training script of a plan, its cell, and its small version for this machine; those of SMP v1 and the compiler."""

from __future__ import annotations

import json
import re
import shlex
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from smp_advisor.core.files import data_file, sentence
from smp_advisor.errors import ExportError
from smp_advisor.export import script_torch, script_trl
from smp_advisor.export.options import JobOptions
from smp_advisor.export.script_parts import (
    Training,
    architecture_of,
    describe,
    library_name,
    patched_release,
    require_auto_partition,
    settings_of,
    unscripted,
)
from smp_advisor.export.template import Comment, render
from smp_advisor.libraries.library import LOCAL_LIBRARY, get_library, supports_tensor_parallelism
from smp_advisor.libraries.plan import Plan
from smp_advisor.libraries.state_bytes import reduces_in_fp32
from smp_advisor.libraries.validation import unscripted_job
from smp_advisor.libraries.version import oldest_script_release, release, transformers_families, version_on
from smp_advisor.workload.stack import training_settings

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model


def _of_count(model: Model) -> str:
    """Return the remedy for a bare count, whose shape is Llama's for every library."""
    return "choose another library, give family='gpt2' with the count" if model.origin == "inferred" else ""


def _require_keras(training: Training) -> None:
    """Raise `ExportError` for models other than GPT-2, and for plans that the script does not support."""
    family, architecture, precision = training.model.family, training.architecture, training.plan.precision
    if family != "gpt2" or architecture.task != "causal":
        raise unscripted(
            f"The TensorFlow script supports only next-token prediction with the family 'gpt2', not"
            f" {architecture.title} with {family!r}",
            _of_count(training.model),
        )
    if precision != "fp32":
        raise unscripted(f"The TensorFlow script trains in fp32, not {precision}")
    require_auto_partition(training.plan)


def _write_keras(training: Training) -> str:
    shape, sequence_length = training.model.shape, training.sequence_length
    sizes = {
        "vocabulary": shape.vocab,
        "positions": sequence_length if training.lacks_positions else training.positions or sequence_length,
        "width": shape.hidden,
        "layers": shape.layers,
        "heads": shape.heads,
        "feed_forward": shape.ffn,
    }
    name, horovod = "train_smp_v1_tensorflow.py.in", training.plan.ddp
    return training.render(name, sizes=sizes, horovod=horovod, clip=False, full_batches=True, tensorflow=True)


def _require_trainer(training: Training) -> None:
    """Raise `ExportError` for jobs and models that the script does not support."""
    title = training.library.title
    if patched_release(training.architecture) != oldest_script_release():
        family = training.model.family
        problem = f"The transformers release in the {title} containers does not support the family {family!r}"
        raise unscripted(problem, _of_count(training.model) or "choose another library")


def _require_smp_v1(training: Training) -> None:
    """Raise `ExportError` for plans that the script does not support."""
    plan = training.plan
    training.require_implemented({})
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
    """Return the packages missing from the container."""
    present = training.container.transformers_version
    return [] if present else [f"transformers=={patched_release(training.architecture)}"]


def _write_smp_v1(training: Training) -> str:
    plan, images = training.plan, training.architecture.task == "image_classification"
    inputs = ("pixel_values",) if images else ("input_ids", "attention_mask")
    features = {
        "fp16": plan.precision == "fp16",
        "bf16": plan.precision == "bf16",
        "prescaled_batch": plan.prescaled_batch,
        "shard_optimizer_state": plan.shard_optimizer_state,
        "sharded_data_parallel": plan.shards_parameters,
        "tensor_parallel": plan.tensor_parallel_degree > 1,
    }
    large = training.model.parameter_count > data_file("export", "launch")["smp_v1"]["undelayed_parameters"]
    delays = large or not training.copies_fit(4 if plan.precision == "fp32" else 2)
    values = features | {
        "inputs": Comment(", ".join(inputs)),
        "keywords": Comment(", ".join(f"{name}={name}" for name in inputs)),
        "features": features,
        "half_inputs": plan.precision != "fp32",
        # Sharded data parallelism clips gradients itself; only fp16 has a norm over all partitions.
        "clip": plan.precision == "fp16" and not plan.shards_parameters,
        "checks_launch": True,
        "tensor_parallel_family": supports_tensor_parallelism(training.model.family, plan.library),
        # Unless a parameter of the estimator enables it.
        "delay_initialization": delays and not plan.delayed_parameter_initialization,
        "full_batches": True,
    }
    return training.render("train_smp_v1.py.in", **values)


_KINDS = {
    # Function that raises `ExportError` for a run that the script does not support, one for the packages missing from
    # the container, and the writer of the script.
    "torch": (script_torch.require, script_torch.requirements, script_torch.write),
    "smp_step": (_require_smp_v1, _patched_transformers, _write_smp_v1),
    "keras": (_require_keras, lambda _: [], _write_keras),
    "trainer": (
        _require_trainer,
        _patched_transformers,
        lambda training: training.render("train_compiler.py.in", evaluation_note=Comment(""), evaluates=False),
    ),
    # `trainer_of` chooses it only for plans that it trains.
    "trl": (lambda _: None, script_trl.requirements, script_trl.write),
}


def builds(model: Model) -> bool:
    """Whether the model has a configuration of a family of transformers, from which a script can be generated."""
    has_class = model.origin != "measured" or model.family in transformers_families()
    return has_class and model.config_json.strip() not in ("", "{}")


def script_cell(
    model: Model, cluster: Cluster, job: Job, plan: Plan, *, trainer: str | None = None, objective: str | None = None
) -> str:
    """Cell that writes the training script; for a module of the user's, a loop with marked places for module and data.

    Empty for such a module with a library that changes its code.

    It runs before the job cell, which packs the script together with its requirements, and has the same `trainer` and
    `objective`.
    """
    if not builds(model):
        return (
            f"%%writefile train.py\n{_own_loop(model, job, plan)}"
            if get_library(plan.library).script == "torch"
            else ""
        )
    training = writable(model, cluster, job, plan, trainer=trainer, objective=objective)
    return f"%%writefile {script_name(training)}\n{written(training)}"


def _own_loop(model: Model, job: Job, plan: Plan) -> str:
    """Return the training loop of a module of the user's, whose job starts ``train.py``."""
    settings, sharded = plan.hyperparameters, plan.shards_parameters
    half = Comment("torch.float16" if plan.precision == "fp16" else "torch.bfloat16")
    in_fp32 = reduces_in_fp32(replace(job, precision=plan.precision))
    return render(
        "train_own_module.py.in",
        model=Comment(model.name),
        library=Comment(library_name(plan)),
        plan=Comment(describe(plan)),
        sharded=sharded,
        recomputes=bool(plan.activation_checkpointing),
        batch_size=settings["batch_size"],
        accumulation=settings["gradient_accumulation_steps"],
        dtype=half,
        gathered=Comment("torch.float32") if plan.precision == "fp32" else half,
        reduced=Comment("torch.float32") if in_fp32 else half,
        hybrid="hybrid" in settings.get("sharding_strategy", ""),
        scales=plan.precision == "fp16",
        autocast=not sharded and plan.precision != "fp32",
        reshards=settings.get("sharding_strategy") in ("full_shard", "hybrid_shard"),
    )


def written(training: Training) -> str:
    """Return the script of a training run; its second line has the digest by which the cell of the job knows it.

    Precision, kind of sharding, prescaled batch and task are fixed in the script. It reads degrees, microbatches and
    sizes from the job, and stops immediately if the two disagree.
    """
    title, lines = _KINDS[_kind(training)][2](training).split("\n", 1)
    content = repr((title, lines, sorted(companions(training).items())))
    return f"{title}\n# Export: {sha256(content.encode()).hexdigest()[:12]}\n{lines}"


def export_line(training: Training) -> str:
    """Return the line of a script that no other model and plan have."""
    return written(training).split("\n", 2)[1]


def script_name(training: Training) -> str:
    """Name of the file of a script, by its model and its content: scripts of one notebook are not mixed up."""
    name = re.sub(r"[^a-z0-9]+", "-", training.model.name.lower()).strip("-")[:30].strip("-") or "model"
    return f"train_{name}_{export_line(training).removeprefix('# Export: ')[:8]}.py"


def companions(training: Training) -> dict[str, str]:
    """Texts of the files next to the script, which the cell of the job writes, by name; empty without any."""
    if training.trainer == "trl":
        return script_trl.companions(training)
    return script_torch.companions(training) if training.library.script == "torch" else {}


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
    """Return the training run, if a script can be generated for it; else raise `ExportError`.

    A `small_copy` stands for a larger model, whose weights the script cannot load.
    """
    if not builds(model):
        problem = f"No training script can be generated for {model.name!r}"
        raise unscripted(f"{problem}, which has no transformers configuration")
    if objection := unscripted_job(plan.library, job, model, cluster.instance):
        raise ExportError(objection)
    plan = replace(plan, version=version_on(plan.library, plan.version, cluster.instance))
    job, plan = script_trl.paired(job, plan, objective)
    training = Training(
        model=model, cluster=cluster, job=job, plan=plan, architecture=architecture_of(model), small_copy=small_copy
    )
    training = replace(training, trainer=script_trl.trainer_of(training, trainer))
    if training.lacks_positions and model.origin != "inferred":
        raise ExportError(sentence("export", "few_positions", model=model, training=training))
    _KINDS[_kind(training)][0](training)
    return training


_LONGEST_SEQUENCE = 128
"""Of a small script, in tokens."""
_LAYERS, _STEPS, _PROCESSES, _LARGEST_BATCH = 2, 20, 2, 2


def _small_configuration(settings: dict[str, Any]) -> dict[str, Any]:
    """Reduce the sizes of a transformers configuration; its vocabulary and architecture are unchanged."""
    dimensions = data_file("export", "small_model")
    small = {name: value for name, value in settings.items() if name not in dimensions["dropped"]}
    for largest, names in dimensions["largest"].items():
        sizes = {name: small[name] for name in names if isinstance(small.get(name), int)}
        small |= {name: min(size, int(largest)) for name, size in sizes.items()}
    # As many heads share keys and values as in the original, if there are that many.
    heads, shared = (
        {name: settings[name] for name in dimensions[kind] if isinstance(settings.get(name), int)}
        for kind in ("heads", "key_value_heads")
    )
    most = dimensions["largest_heads"]
    total = max(heads.values(), default=most)
    small |= {name: min(count, most) for name, count in heads.items()}
    small |= {name: max(1, min(most, most * count // total)) for name, count in shared.items()}
    for name in dimensions["by_layer"]:
        if isinstance(small.get(name), list):
            small[name] = small[name][:_LAYERS]
    if "attention_types" in small:  # GPT-Neo: kinds of attention, and how often they repeat
        small["attention_types"] = [[["global"], _LAYERS]]
    for head_dim, count, expansion in dimensions["state_heads"]:
        if {head_dim, count, expansion} <= small.keys():
            width = small.get("mamba_d_ssm") or small["hidden_size"] * small[expansion]
            small[head_dim] = width // small[count]
    rope = small.get("rope_parameters")
    # The encoder and the decoder of some families have configurations of their own.
    small |= {name: _small_configuration(part) for name, part in small.items() if isinstance(part, dict)}
    if isinstance(rope, dict) and "rope_theta" in rope:
        # Scaled positions have lists whose length depends on the width.
        small["rope_parameters"] = {"rope_type": "default", "rope_theta": rope["rope_theta"]}
    return small


def small_script(
    model: Model,
    cluster: Cluster,
    job: Job,
    plan: Plan,
    *,
    trainer: str = "plain",
    objective: str | None = None,
    as_planned: bool = False,
) -> str | None:
    """Return the script of `local_cell`, with a small model of the family; None if none can be generated.

    See `JobOptions` for `trainer` and `objective`. `as_planned` keeps the library of the plan, its sharding and its
    accumulation, where the library is one of PyTorch itself.
    """
    if not builds(model):
        return None
    settings = _small_configuration(settings_of(model))
    small = replace(model, name=f"small copy of {model.name}", config_json=json.dumps(settings, sort_keys=True))
    alone = Plan(
        library=LOCAL_LIBRARY,
        batch_size=min(plan.batch_size, _LARGEST_BATCH),
        precision="fp32",
        activation_checkpointing="each" if plan.activation_checkpointing else False,
    )
    library = get_library(plan.library)
    if as_planned and library.script == "torch" and not library.smdistributed:  # which run here as they are
        times = min(plan.gradient_accumulation_steps, _LARGEST_BATCH)
        alone = replace(plan, batch_size=alone.batch_size, gradient_accumulation_steps=times)
    # Settings that save memory do not matter for a small model.
    plain: dict[str, Any] = {name: training_settings()[name].default for name in job.training_settings()}
    plain |= {"fp8": False, "fp8_weights": False}
    if job.adapter is not None and trainer == "trl":
        # Quantized weights require bitsandbytes, which this machine may lack.
        plain["adapter"] = replace(job.adapter, base_bits=16, double_quantization=False, upcast=False)
    elif trainer == "plain" and job.tunes:
        plain |= {"adapter": None, "training": "fine-tuning"}
    if model.reads_tokens:
        plain["sequence_length"] = min(job.sequence_length, _LONGEST_SEQUENCE)
    short = replace(job, **plain)
    training = writable(small, cluster, short, alone, trainer=trainer, objective=objective, small_copy=True)
    return written(training)


def local_cell(model: Model, cluster: Cluster, job: Job, plan: Plan, **options: Any) -> str:
    """``%%smp_local`` cell that runs a small version of the training on this machine, in the environment of a job.

    The model-parallel libraries exist only in the SageMaker containers. The cell therefore uses the script for plain
    data parallelism, with the same data code, task and options, in fp32, for a small model of the same family. It
    finds errors in data, shapes, options and the loss, but not in memory use. A script of the user runs unchanged. The
    cell of a job that trains with TRL uses TRL if it is installed here. Of `JobOptions`, those of the script are used.
    """
    chosen = JobOptions.of(options)
    if chosen.script is not None:
        folder = "" if chosen.source_dir is None else f"{chosen.source_dir}/"
        return f"%smp_rehearse {shlex.quote(f'{folder}{chosen.script}')} --steps {_STEPS}\n"
    note, trainer = "", "plain"
    if builds(model):
        with suppress(ExportError):  # of the plan's own script
            trainer = writable(model, cluster, job, plan, trainer=chosen.trainer, objective=chosen.objective).trainer
    if trainer == "trl" and find_spec("trl") is None:
        note = "# The job trains with TRL, which is not installed here: this is the loop of trainer='plain'.\n"
        trainer = "plain"
    objective = chosen.objective if trainer == "trl" else None
    script = small_script(model, cluster, job, plan, trainer=trainer, objective=objective)
    if script is None:
        hint = "# Put the code of your training script here, without calls of the library."
        return f"%%smp_local --steps {_STEPS}\n{hint}\n"
    return f"%%smp_local --processes {_PROCESSES} --steps {_STEPS} --name train.py\n{note}{script}"
