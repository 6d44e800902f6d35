"""Families with a training script, values and flags of all templates, and the words for a plan in scripts and cells."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from smp_advisor.core.files import data_file
from smp_advisor.costs.compute import model_flops_per_sample
from smp_advisor.costs.constants import peak_flops
from smp_advisor.costs.evaluate import estimate
from smp_advisor.costs.phases import HOST_SHARE
from smp_advisor.costs.wording import parameters_text
from smp_advisor.errors import ExportError, PlanError
from smp_advisor.export.template import Comment, comment, comment_lines, gathered, render, text_literal
from smp_advisor.libraries.library import get_library
from smp_advisor.libraries.state_bytes import reduces_in_fp32
from smp_advisor.libraries.version import (
    image,
    newest_script_release,
    release,
    reserved_positions,
    script_release,
    smp_v1_release,
    transformers_families,
)

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
_LAUNCHERS = {"torchrun": "torchrun", "mpi": "MPI", "xla": "torch_xla"}
_FRAMEWORKS = {"pytorch": "PyTorch", "tensorflow": "TensorFlow"}
_FREE_SHARE = 0.7
"""Fraction of the host memory up to which a script chooses to hold copies of the model in all processes."""


def unscripted(problem: str, instead: str = "") -> ExportError:
    """Return the refusal of a job without a generated script, with what would help besides a script of the user."""
    return ExportError(f"{problem}: {f'{instead}, or ' if instead else ''}pass script= with your own script.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """How a family of transformers models is built, and its training task."""

    family: str
    task: str
    title: str
    """The task, for a comment."""
    auto_model: str
    """Class in transformers that builds the model from a configuration."""
    layers: tuple[str, ...]
    """Attributes that may contain the repeated layers."""
    since: str
    """First release of transformers with the family, of those that the scripts use."""
    mask_token_id: int = 0
    """Token that replaces a masked token, for the task ``masked``."""

    @property
    def reads_text(self) -> bool:
        """Whether samples are text without other labels."""
        return self.task in ("causal", "masked", "sequence_to_sequence")


def architecture_of(model: Model) -> Architecture:
    """Architecture of `model`."""
    families = transformers_families()
    if model.family not in families:
        raise unscripted(
            f"No training script can be generated for the family {model.family!r}, of which transformers"
            f" {newest_script_release()} has no model for text or images"
        )
    listed = families[model.family]
    task = listed.task
    table = data_file("export", "architectures")
    # A trace counts the head of images among the blocks.
    traced = model.origin == "measured" and model.family in table["traced_images"]
    if model.head.kind == "none" and not (traced and "ForImageClassification" in model.config_json):
        problem = f"{model.name!r} has no head, so there is no training loss"
        raise unscripted(problem, "describe the model with its head")
    if model.head.kind != "language-model" and task != "image_classification":
        task = "text_classification"
    masks = table["mask_token_id"].items()
    layers = tuple(table["layers"].get(model.family, table["layers"]["usual"]))
    return Architecture(
        family=model.family,
        task=task,
        layers=layers,
        since=listed.since,
        mask_token_id=next((int(value) for value, having in masks if model.family in having), 0),
        **table["task"][task],
    )


def patched_release(architecture: Architecture) -> str:
    """Release of transformers with which SMP v1 and Training Compiler replace layers, or one that has the family."""
    return _supported(architecture, smp_v1_release(architecture.since), "SMP v1")


def newest_release(pytorch_version: str, architecture: Architecture) -> str:
    """Release of transformers for a version of PyTorch, or the first with the family, if it supports that version."""
    return _supported(architecture, script_release(pytorch_version, architecture.since), f"PyTorch {pytorch_version}")


def _supported(architecture: Architecture, chosen: str | None, framework: str) -> str:
    if chosen is None:
        raise unscripted(
            f"The family {architecture.family!r} requires transformers {architecture.since}, which does not support"
            f" {framework}",
            "choose a newer version or another library",
        )
    return chosen


def packages_of(trainer: str, pytorch_version: str) -> list[str]:
    """Packages of a trainer besides `newest_release`, with exact versions; empty where it does not support PyTorch."""
    releases = data_file("export", "architectures")["release"][trainer]
    since = [first for first in releases if release(first) <= release(pytorch_version)]
    packages = releases[max(since, key=release)] if since else {}
    return [f"{name}=={version}" for name, version in packages.items()]


def settings_of(model: Model) -> dict[str, Any]:
    """Return the configuration of `model`, in which transformers writes infinity as ``{"__float__": "Infinity"}``."""
    settings: dict[str, Any] = json.loads(
        model.config_json, object_hook=lambda part: float(part["__float__"]) if "__float__" in part else part
    )
    return settings


def _rotation(rope: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of rotary embeddings with the keys that transformers releases before 5 read."""
    if isinstance(rope.get("full_attention"), dict):  # per kind of layer
        local = rope.get("sliding_attention") or {}
        settings = _rotation(rope["full_attention"])
        return settings | ({"rope_local_base_freq": local["rope_theta"]} if "rope_theta" in local else {})
    settings = {key: value for key, value in rope.items() if key in ("rope_theta", "partial_rotary_factor")}
    scaling = {key: value for key, value in rope.items() if key not in settings}
    if scaling.get("rope_type", "default") != "default":
        settings["rope_scaling"] = scaling
    return settings


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
    def low_bits(self) -> str:
        """Class of torchao for the optimizer; empty for others."""
        return {"adam-8bit": "AdamW8bit", "adam-4bit": "AdamW4bit"}.get(self.job.optimizer, "")

    @property
    def prefers(self) -> bool:
        """Whether the run trains on preferences, which are pairs of sequences."""
        return self.job.training == "dpo"

    @property
    def usual_epochs(self) -> int:
        """Epochs of a run without a length."""
        repeats = self.job.adapter is not None and not self.prefers
        return int(data_file("export", "launch")["run"]["adapter_epochs" if repeats else "epochs"])

    @property
    def sequence_length(self) -> int:
        """Length of a sequence, in tokens."""
        return self.model.sequence_length(self.job.sequence_length)

    @property
    def positions(self) -> int:
        """Longest sequence that the position embeddings support, in tokens; 0 without position embeddings."""
        return max(0, self.model.shape.max_positions - reserved_positions(self.model.family))

    @property
    def lacks_positions(self) -> bool:
        """Whether the sequence is longer than the position embeddings support."""
        return 0 < self.positions < self.sequence_length

    @property
    def reduced_dtype(self) -> str:
        """Type in which gradients of sharded parameters are reduced, as the estimate counts."""
        in_fp32 = reduces_in_fp32(replace(self.job, precision=self.plan.precision))
        return DTYPES["fp32" if in_fp32 else self.plan.precision]

    def copies_fit(self, bytes_per_parameter: float) -> bool:
        """Return whether the host memory has ample space for one copy of the model per GPU."""
        copies_bytes = self.model.parameter_count * bytes_per_parameter * self.cluster.gpus_per_node
        return self.host_holds(copies_bytes, _FREE_SHARE)

    def host_holds(self, node_bytes: float, share: float = HOST_SHARE) -> bool:
        """Return whether the host memory of a node is large enough, by default as the estimate counts it."""
        return self.small_copy or node_bytes <= share * self.cluster.instance.host_memory_gib * 2**30

    def unimplemented(self, implemented: Mapping[str, Collection[object]]) -> str:
        """Return a training setting of the job that a script does not implement; empty without one."""
        settings = self.job.training_settings().items()
        return next((f"{name}={value!r}" for name, value in settings if value not in implemented.get(name, ())), "")

    def require_implemented(self, implemented: Mapping[str, Collection[object]]) -> None:
        """Raise `ExportError` for a training setting of the job that the script does not implement."""
        if setting := self.unimplemented(implemented):
            raise unscripted(f"The generated script does not implement {setting}", "leave it out of the job")

    @property
    def configuration(self) -> dict[str, Any]:
        """Configuration in transformers without keys that do not affect training, with the positions of a sequence."""
        left_out = data_file("export", "scripts")["keys"]["not_shape"]
        settings = {
            key: value for key, value in settings_of(self.model).items() if key not in left_out and value is not None
        }
        rope = settings.pop("rope_parameters", None)
        if isinstance(rope, dict):
            settings = _rotation(rope) | settings
        if self.model.head.kind == "classification":
            settings["num_labels"] = self.model.head.outputs
        elif self.architecture.task == "image_classification":
            settings["num_labels"] = len(settings_of(self.model).get("id2label") or (0, 1))
        if self.lacks_positions:
            # The number of positions of an inferred shape is inferred too: use the sequence length.
            name = next(name for name in ("n_positions", "max_position_embeddings") if name in settings)
            settings[name] = self.sequence_length + reserved_positions(self.model.family)
        if self.model.family in data_file("export", "architectures")["starts_with_padding"]:
            settings.setdefault("decoder_start_token_id", settings.get("pad_token_id", 0))
        if self.architecture.task == "text_classification":
            # Decoders use it to find the last token of a sequence.
            settings.setdefault("pad_token_id", 0)
        return settings

    @property
    def flops(self) -> dict[str, float]:
        """Figures from which a script computes its TFLOPS and model FLOPs utilization, as estimates do."""
        adapter = self.job.adapter
        model = self.model if adapter is None else adapter.applied_to(self.model)
        sample = model_flops_per_sample(model, self.sequence_length)
        peak = peak_flops(self.cluster.instance, replace(self.job, precision=self.plan.precision))
        return {"flops_per_sample": float(f"{sample:.6g}"), "peak_tflops": round(peak / 1e12, 1)}

    @property
    def pace(self) -> dict[str, float]:
        """Estimated seconds of a step and USD per hour, for the first line of the log; 0 where one is not known."""
        with suppress(PlanError):
            seconds = 0.0 if self.small_copy else estimate(self.model, self.cluster, self.job, self.plan).step_seconds
            return {"step_seconds": float(f"{seconds:.3g}"), "usd_per_hour": self.cluster.usd_per_hour or 0.0}
        return {"step_seconds": 0.0, "usd_per_hour": 0.0}

    def render(self, template: str, /, **values: object) -> str:
        """Return the script of a template, with `values` besides or instead of those of all libraries."""
        return gathered(render(template, **{**self._values, **values}))

    @property
    def _values(self) -> dict[str, object]:
        model, plan, architecture = self.model, self.plan, self.architecture
        return {
            "model_name": Comment(f'"{comment(model.name)}"'),
            "parameters": Comment("small sizes" if self.small_copy else parameters_text(model, self.job.adapter)),
            "task": Comment(architecture.title),
            "architecture": comment_lines(architecture_note(model)),
            "library": Comment(library_name(plan)),
            "launcher": Comment(_LAUNCHERS[self.library.launcher]),
            "plan": Comment(describe(plan)),
            "auto_model": Comment(architecture.auto_model),
            "family": model.family,
            "configuration": self.configuration,
            "batch_size": plan.batch_size,
            "sequence_length": self.sequence_length,
            "positions": self.positions,
            "fixed_settings": {"precision": plan.precision},
            "activation_checkpointing": plan.activation_checkpointing or "none",
            "learning_rate": 0.01 if "sgd" in self.job.optimizer else 0.0001,
            "momentum": 0.0 if self.job.optimizer == "plain-sgd" else 0.9,
            "low_bits": Comment(self.low_bits),
            "mask_token_id": min(architecture.mask_token_id, max(0, model.shape.vocab - 1)),
            "dtype": Comment(DTYPES[plan.precision]),
            "evaluation_note": Comment(" and every --evaluate_every steps"),
            "step_option": Comment(""),
            "layer_names": Comment(", ".join(map(text_literal, ["seq_layers", *architecture.layers]))),
            # Half of a sample is for the encoder, half for the decoder.
            "sample_length": Comment("twice " * (architecture.task == "sequence_to_sequence") + "--sequence_length"),
            "token_dtype": "uint16" if model.shape.vocab <= 2**16 else "uint32",
            **self.flops,
            **self.pace,
            **dict.fromkeys((*_TASKS, *data_file("export", "scripts")["keys"]["optional"]), False),
            architecture.task: True,
            "adam": self.job.optimizer == "adam",
            "fp16": plan.precision == "fp16",
            "small_copy": self.small_copy,
            "inferred": self.model.origin == "inferred",
            "clip": True,
            "evaluates": True,
            "checkpoints_activations": bool(plan.activation_checkpointing),
            "chooses_checkpointing": "activation_checkpointing" in plan.hyperparameters,
            "more_positions": self.lacks_positions,
        }


def rows_file(training: Training) -> str:
    """``rows.py``: it reads rows and ids, and marks the tokens that have a loss, the same for every trainer."""
    pairs = training.architecture.task == "sequence_to_sequence"
    return gathered(render("rows.py.in", pairs=pairs, chats=not pairs, preferences=training.prefers))


def hardware(cluster: Cluster) -> str:
    """Instances, GPUs and price of a cluster."""
    price = cluster.usd_per_hour
    cost = "price unknown" if price is None else f"about ${price:,.2f} per hour"
    return f"{cluster.nodes} x {cluster.instance.name} ({cluster.gpus} GPUs, {cost})"


def library_name(plan: Plan) -> str:
    """Return the library with its version and framework, for example "SMP v2 2.8.0 (PyTorch 2.5.1)"."""
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
        "activation checkpointing": bool(plan.activation_checkpointing),
        "activation offloading": bool(plan.offload_activations),
    }
    used = [word for word, on in words.items() if on]
    used = used if set(used) - {"activation checkpointing", "activation offloading"} else ["data parallelism", *used]
    return f"{plan.precision}, {', '.join(used)}"


def in_words(seconds: float) -> str:
    """Return a duration in its natural unit, with two to three digits.

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
    """Return the architecture that stands for a number of parameters, and how to train another one."""
    shape = model.shape
    return (
        f"Architecture: a {model.family} model of {shape.layers} layers and width {shape.hidden:,}, inferred from the"
        " number of parameters. To train another one, advise on it by name, configuration or weights:"
        ' advise("llama-3-8b", ...).'
    )


def require_auto_partition(plan: Plan) -> None:
    """Raise `ExportError` if the script must place layers on pipeline stages itself."""
    if not plan.auto_partition:
        problem = "auto_partition=False requires a script that places layers on pipeline stages"
        raise unscripted(f"{problem}, which depends on the model", "set auto_partition=True")
