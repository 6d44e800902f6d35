"""The training script of a plan, and the cell that writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.errors import ExportError
from smp_advisor.export.architectures import Architecture, architecture, configuration, first_library_version
from smp_advisor.export.describing import describe
from smp_advisor.export.literal import Comment, comment
from smp_advisor.export.template import render
from smp_advisor.library.families import supports_tensor_parallelism
from smp_advisor.library.version import image, release

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.library.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["SCRIPT_NAME", "builds", "require_writable", "requirements", "script_cell", "training_script"]

SCRIPT_NAME = "train_smp.py"
"""File that the script cell writes, beside the notebook."""

_DELAY_ABOVE_PARAMETERS = 100e9
"""From there on the developer guide ("Configuration Tips and Pitfalls") asks for delayed parameter initialization."""
_HOST_SHARE = 0.7
"""Share of a node's memory that the ranks' own copies of the model may take while it is built."""

_DTYPES = {"fp16": "torch.float16", "bf16": "torch.bfloat16", "fp32": "torch.float32"}


def builds(model: Model) -> bool:
    """Whether a script can be written: the model is described by a transformers configuration, not by code."""
    return model.config_json.strip() not in ("", "{}")


def script_cell(model: Model, cluster: Cluster, job: Job, plan: Plan) -> str:
    """Cell that writes the training script; empty where the model is the user's own code.

    It stands above the estimator's cell, which packs the file together with its requirements.
    """
    if not builds(model):
        return ""
    return f"%%writefile {SCRIPT_NAME}\n" + training_script(model, cluster, job, plan)


def training_script(model: Model, cluster: Cluster, job: Job, plan: Plan) -> str:
    """Complete SMP v1 training script for `model` as `plan` runs it.

    The script is written for what changes its text (precision, kind of sharding, prescaled batch, task); degrees,
    microbatches and sizes it takes from the job, and it stops at once where the two disagree.

    Raises
    ------
    ExportError
        Where no release of transformers that runs in the library's containers builds the model, or the plan asks for
        what a script can only do by hand.
    """
    require_writable(model, job, plan)
    known = architecture(model)
    container = image(plan.library, plan.version)
    flags = {
        known_task: known.task == known_task
        for known_task in ("causal", "masked", "sequence_to_sequence", "text_classification", "image_classification")
    }
    sharded = plan.sharded_data_parallel_degree > 1
    sequence_length = model.sequence_length(job.sequence_length)
    values: dict[str, object] = {
        "model_name": Comment(f'"{comment(model.name)}"'),
        "parameters": Comment(f"{model.parameter_count / 1e9:.3g} B parameters"),
        "task": Comment(known.title),
        "library_version": Comment(plan.version),
        "framework_version": Comment(container.framework_version),
        "plan": Comment(describe(plan)),
        "auto_model": Comment(known.auto_model),
        "family": model.family,
        "family_text": Comment(known.family),
        "configuration": _configuration(model, known, sequence_length),
        "features": _features(plan),
        "batch_size": plan.batch_size,
        "sequence_length": sequence_length,
        "positions": _positions(model, known),
        "precision": plan.precision,
        "precision_text": Comment(plan.precision),
        "activation_checkpointing": plan.hyperparameters["activation_checkpointing"],
        "learning_rate": 0.0001 if job.optimizer == "adam" else 0.01,
        "mask_token_id": min(known.mask_token_id, max(0, model.shape.vocab - 1)),
        "dtype": Comment(_DTYPES[plan.precision]),
        "layer_names": ["seq_layers", *known.layers],
    }
    flags |= {
        "adam": job.optimizer == "adam",
        "fp16": plan.fp16,
        "half": plan.precision != "fp32",
        # Sharded data parallelism clips by itself; the other precisions have no norm over all partitions.
        "clip": plan.fp16 and not sharded,
        "sharded_data_parallel": sharded,
        "shard_optimizer_state": plan.shard_optimizer_state,
        "prescaled": plan.prescaled_batch,
        "tensor_parallel": plan.tensor_parallel_degree > 1,
        "tensor_parallel_family": supports_tensor_parallelism(model.family),
        "more_positions": _lacks_positions(model, known, sequence_length),
        "delay_initialization": _delays_initialization(model, cluster, plan),
    }
    return render("train_smp_v1.py.in", values=values, flags=flags)


def require_writable(model: Model, job: Job, plan: Plan) -> None:
    """Raise `ExportError` where no script can be written for a model and plan."""
    if not builds(model):
        raise ExportError(
            f"No training script can be written for {model.name!r}, which is not described by a transformers"
            " configuration: pass script= with your own."
        )
    if release(plan.version) < release(first_library_version()):
        raise ExportError(
            f"The training script needs library version {first_library_version()} or later, the plan is written for"
            f" {plan.version}: choose a later version, or pass script= with your own."
        )
    if job.adapter is not None or job.optimizer not in {"adam", "sgd"}:
        what = "an adapter" if job.adapter is not None else f"the optimizer {job.optimizer!r}"
        raise ExportError(
            f"The training script trains every parameter with Adam or SGD, and the job asks for {what}: pass script="
            " with your own."
        )
    sequence_length = model.sequence_length(job.sequence_length)
    if _lacks_positions(model, architecture(model), sequence_length) and model.origin != "inferred":
        raise ExportError(
            f"{model.name!r} has {_positions(model, architecture(model))} positions and cannot train on sequences of"
            f" {sequence_length} tokens: shorten the sequence, or describe the model with more positions."
        )
    if plan.pipeline_parallel_degree > 1 and not plan.auto_partition:
        raise ExportError(
            "auto_partition=False leaves it to the script to place layers on pipeline stages, which differs from model"
            " to model: set auto_partition=True, or pass script= with your own."
        )


def _configuration(model: Model, known: Architecture, sequence_length: int) -> dict[str, object]:
    found = configuration(model)
    if _lacks_positions(model, known, sequence_length):
        # An inferred shape's table of positions is inferred as well: here it is known how long it has to be.
        name = next(name for name in ("n_positions", "max_position_embeddings") if name in found)
        found[name] = sequence_length + known.reserved_positions
    if known.task == "text_classification":
        # Decoders find the last token of a sequence by it.
        found.setdefault("pad_token_id", 0)
    return found


def _positions(model: Model, known: Architecture) -> int:
    """Tokens that the table of positions is long enough for; 0 where there is no table."""
    return max(0, model.shape.max_positions - known.reserved_positions)


def _lacks_positions(model: Model, known: Architecture, sequence_length: int) -> bool:
    return 0 < _positions(model, known) < sequence_length


def _features(plan: Plan) -> dict[str, bool]:
    return {
        "fp16": plan.fp16,
        "bf16": plan.bf16,
        "prescaled_batch": plan.prescaled_batch,
        "shard_optimizer_state": plan.shard_optimizer_state,
        "sharded_data_parallel": plan.sharded_data_parallel_degree > 1,
        "tensor_parallel": plan.tensor_parallel_degree > 1,
    }


def requirements(model: Model, plan: Plan) -> str:  # noqa: ARG001
    """``requirements.txt`` of the generated script: what its container does not hold."""
    return f"transformers=={architecture(model).transformers_version}\n"


def _delays_initialization(model: Model, cluster: Cluster, plan: Plan) -> bool:
    if plan.delayed_parameter_initialization:
        return False  # the estimator's parameter does it
    bytes_per_parameter = 4 if plan.precision == "fp32" else 2
    copies_bytes = model.parameter_count * bytes_per_parameter * cluster.gpus_per_node
    too_large = copies_bytes > _HOST_SHARE * cluster.instance.host_memory_gib * 2**30
    return model.parameter_count > _DELAY_ABOVE_PARAMETERS or too_large
