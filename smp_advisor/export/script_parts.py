"""Template values and flags of all training scripts, and the words for a plan that cells have as well."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from smp_advisor.costs.compute import model_flops_per_sample
from smp_advisor.costs.constants import peak_flops
from smp_advisor.costs.wording import parameters_text
from smp_advisor.export.architectures import Architecture, configuration
from smp_advisor.export.checks import unscripted
from smp_advisor.export.template import Comment, comment, comment_lines, text_literal
from smp_advisor.files import data_file
from smp_advisor.libraries.library import get_library
from smp_advisor.libraries.version import image

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.library import Library
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.libraries.version import Image
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

DTYPES = {"fp16": "torch.float16", "bf16": "torch.bfloat16", "fp32": "torch.float32"}

_TASKS = ("causal", "masked", "sequence_to_sequence", "text_classification", "image_classification")
_OPTIONAL = (
    *("accumulates", "checks_launch", "half_inputs", "reads_text", "weighted", "norms", "full_batches"),
    *("chats", "pairs", "sharded", "tensorflow"),
)
"""Parts that only some scripts have."""
_LAUNCHERS = {"torchrun": "torchrun", "mpi": "MPI", "xla": "torch_xla"}
_FRAMEWORKS = {"pytorch": "PyTorch", "tensorflow": "TensorFlow"}
_HOST_SHARE = 0.7
"""Fraction of the host memory that the copies of the model in all processes may use while it is built."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """A training run for which a script is generated."""

    model: Model
    cluster: Cluster
    job: Job
    plan: Plan
    architecture: Architecture
    trainer: str = "plain"
    """Trainer of the script: ``plain`` (a loop of its own), or ``trl``."""
    objective: str = "sft"
    """Objective of fine-tuning: ``sft`` or ``dpo``."""
    small_copy: bool = False
    """Whether the configuration is that of a small copy of the model; the sizes of `model` are the original's."""

    @property
    def library(self) -> Library:
        """Record of the library of the plan."""
        return get_library(self.plan.library)

    @property
    def container(self) -> Image:
        """Container of the library version."""
        return image(self.plan.library, self.plan.version)

    @property
    def tunes(self) -> bool:
        """Whether the run is fine-tuning, whose rows may be conversations."""
        return self.job.adapter is not None or self.job.training == "fine-tuning"

    @property
    def usual_epochs(self) -> int:
        """Epochs of a run without a length."""
        repeats = self.job.adapter is not None and self.objective == "sft"
        return int(data_file("export", "launch")["run"]["adapter_epochs" if repeats else "epochs"])

    @property
    def sequence_length(self) -> int:
        """Length of a sequence, in tokens."""
        return self.model.sequence_length(self.job.sequence_length)

    @property
    def positions(self) -> int:
        """Longest sequence that the position embeddings support, in tokens; 0 without position embeddings."""
        return max(0, self.model.shape.max_positions - self.architecture.reserved_positions)

    @property
    def lacks_positions(self) -> bool:
        """Whether the sequence is longer than the position embeddings support."""
        return 0 < self.positions < self.sequence_length


def hardware(cluster: Cluster) -> str:
    """Instances, GPUs and price of a cluster."""
    price = cluster.usd_per_hour
    cost = "price unknown" if price is None else f"about ${price:,.2f} per hour"
    return f"{cluster.nodes} x {cluster.instance.name} ({cluster.gpus} GPUs, {cost})"


def library_name(plan: Plan) -> str:
    """Library with its version and framework, for example "SMP v2 2.8.0 (PyTorch 2.5.1)"."""
    library, framework_version = get_library(plan.library), image(plan.library, plan.version).framework_version
    # A library without versions of its own uses those of its framework.
    version = "" if plan.version == framework_version else f" {plan.version}"
    return f"{library.title}{version} ({_FRAMEWORKS[library.framework]} {framework_version})"


def describe(plan: Plan) -> str:
    """Precision and techniques of a plan."""
    words = {
        "pipeline parallelism": plan.pipeline_parallel_degree > 1,
        "tensor parallelism": plan.tensor_parallel_degree > 1,
        "context parallelism": plan.context_parallel_degree > 1,
        "expert parallelism": plan.expert_parallel_degree > 1,
        "sharded data parallelism": plan.shards_parameters,
        "optimizer state sharding": plan.shard_optimizer_state,
        "compiled": get_library(plan.library).compiles,
    }
    used = [word for word, on in words.items() if on] or ["data parallelism"]
    return f"{plan.precision}, {', '.join(used)}"


def in_words(seconds: float) -> str:
    """A duration in its natural unit, with two to three digits.

    Examples
    --------
    >>> in_words(42), in_words(5400), in_words(104 * 86400)
    ('42 s', '90 min', '104 days')
    """
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            value = seconds / size
            return f"{value:,.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}".replace(".0 ", " ")
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def architecture_note(model: Model) -> str:
    """The architecture that stands for a number of parameters, and how to train another one."""
    shape = model.shape
    return (
        f"Architecture: a {model.family} model of {shape.layers} layers and width {shape.hidden:,}, inferred from the"
        " number of parameters. To train another one, advise on it by name, configuration or weights:"
        ' advise("llama-3-8b", ...).'
    )


def common_values(training: Training) -> dict[str, object]:
    """Template values for all libraries."""
    model, plan, architecture = training.model, training.plan, training.architecture
    return {
        "model_name": Comment(f'"{comment(model.name)}"'),
        "parameters": Comment("small sizes" if training.small_copy else parameters_text(model, training.job.adapter)),
        "task": Comment(architecture.title),
        "architecture": comment_lines(architecture_note(model)),
        "library": Comment(library_name(plan)),
        "launcher": Comment(_LAUNCHERS[training.library.launcher]),
        "plan": Comment(describe(plan)),
        "auto_model": Comment(architecture.auto_model),
        "family": model.family,
        "configuration": model_configuration(training),
        "batch_size": plan.batch_size,
        "sequence_length": training.sequence_length,
        "positions": training.positions,
        "fixed_settings": {"precision": plan.precision},
        "activation_checkpointing": plan.activation_checkpointing or "none",
        "learning_rate": 0.0001 if training.job.optimizer == "adam" else 0.01,
        "mask_token_id": min(architecture.mask_token_id, max(0, model.shape.vocab - 1)),
        "dtype": Comment(DTYPES[plan.precision]),
        "evaluation_note": Comment(" and every --evaluate_every steps"),
        "step_option": Comment(""),
        "layer_names": Comment(", ".join(map(text_literal, ["seq_layers", *architecture.layers]))),
        # Half of a sample is for the encoder, half for the decoder.
        "sample_length": Comment(f"{'twice ' if architecture.task == 'sequence_to_sequence' else ''}--sequence_length"),
        "token_dtype": "uint16" if model.shape.vocab <= 2**16 else "uint32",
        **flops(training),
    }


def flops(training: Training) -> dict[str, float]:
    """Figures from which a script computes its TFLOPS and model FLOPs utilization, as estimates do."""
    model, job, length = training.model, training.job, training.sequence_length
    if job.adapter is not None:
        model = job.adapter.applied_to(model)
    peak = peak_flops(training.cluster.instance, replace(job, precision=training.plan.precision))
    return {
        "flops_per_sample": float(f"{model_flops_per_sample(model, length):.6g}"),
        "peak_tflops": round(peak / 1e12, 1),
    }


def common_flags(training: Training) -> dict[str, bool]:
    """Template flags for all libraries."""
    plan = training.plan
    return (
        {task: training.architecture.task == task for task in _TASKS}
        | dict.fromkeys(_OPTIONAL, False)
        | {
            "adam": training.job.optimizer == "adam",
            "fp16": plan.precision == "fp16",
            "small_copy": training.small_copy,
            "inferred": training.model.origin == "inferred",
            "clip": True,
            "evaluates": True,
            "checkpoints_activations": bool(plan.activation_checkpointing),
            "chooses_checkpointing": "activation_checkpointing" in plan.hyperparameters,
            "more_positions": training.lacks_positions,
        }
    )


def require_auto_partition(plan: Plan) -> None:
    """Raise `ExportError` if the script must place layers on pipeline stages itself."""
    if not plan.auto_partition:
        problem = "auto_partition=False requires a script that places layers on pipeline stages"
        raise unscripted(f"{problem}, which depends on the model", "set auto_partition=True")


def unimplemented(training: Training, implemented: Mapping[str, Collection[object]]) -> str:
    """A training setting of the job that a script does not implement; empty without one."""
    settings = training.job.training_settings().items()
    return next((f"{name}={value!r}" for name, value in settings if value not in implemented.get(name, ())), "")


def require_implemented(training: Training, implemented: Mapping[str, Collection[object]]) -> None:
    """Raise `ExportError` for a training setting of the job that the script does not implement."""
    if setting := unimplemented(training, implemented):
        raise unscripted(f"The generated script does not implement {setting}", "leave it out of the job")


def copies_fit(training: Training, bytes_per_parameter: float) -> bool:
    """Whether the host memory is large enough for one copy of the model per GPU."""
    if training.small_copy:
        return True
    cluster = training.cluster
    copies_bytes = training.model.parameter_count * bytes_per_parameter * cluster.gpus_per_node
    return copies_bytes <= _HOST_SHARE * cluster.instance.host_memory_gib * 2**30


def model_configuration(training: Training) -> dict[str, Any]:
    """Configuration of the model in transformers, with the positions that the sequence requires."""
    settings = configuration(training.model)
    if training.lacks_positions:
        # The number of positions of an inferred shape is inferred too: use the sequence length.
        name = next(name for name in ("n_positions", "max_position_embeddings") if name in settings)
        settings[name] = training.sequence_length + training.architecture.reserved_positions
    if training.architecture.task == "text_classification":
        # Decoders use it to find the last token of a sequence.
        settings.setdefault("pad_token_id", 0)
    return settings
