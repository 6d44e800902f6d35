"""Arguments of public calls: their types, and the keyword that an unknown one means."""

from __future__ import annotations

import difflib
import os
from functools import wraps
from inspect import signature
from types import MappingProxyType
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from smp_advisor.errors import AdvisorError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

__all__ = ["meant", "require_path", "require_types", "with_exact_keywords"]


_LONGEST_PATH = 4096
"""Bytes of a path in Linux."""


def require_types(arguments: Mapping[str, tuple[object, type | tuple[type, ...]]], call: str) -> None:
    """Refuse an argument of another type.

    Parameters
    ----------
    arguments
        Value and accepted types of each argument, by its name. True and False are no whole numbers.
    call
        Name of the function, for the sentence.

    Raises
    ------
    AdvisorError
        A value has another type.

    Examples
    --------
    >>> require_types({"steps": (1, int)}, "undo")
    """
    for name, (value, types) in arguments.items():
        kinds = types if isinstance(types, tuple) else (types,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            names = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
            raise AdvisorError(f"{call}() requires for {name} a value of type {names}, not {value!r:.80}.")


def require_path(path: object, call: str) -> None:
    """Refuse a value that is no path of a file.

    Raises
    ------
    AdvisorError
        It is neither text nor a path, or no system has such a path.
    """
    if not isinstance(path, str | os.PathLike):
        raise AdvisorError(f"{call}() requires the path of a file, not {path!r:.80}.")
    text = os.fspath(path)
    if not isinstance(text, str) or not text or "\0" in text or len(text) > _LONGEST_PATH:
        raise AdvisorError(f"{call}() requires the path of a file, not {text!r:.80}.")


if TYPE_CHECKING:
    Parameters = ParamSpec("Parameters")
    Result = TypeVar("Result")


_LONGEST = 100
"""Characters of a name that is compared with keywords."""
_MEANINGS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "max_days": ("days", "deadline", "duration", "time_limit", "hours", "weeks", "within_days"),
        "max_usd": ("budget", "usd", "dollars", "money", "max_cost", "max_price", "budget_usd"),
        "tokens": ("epochs", "total_tokens", "training_tokens", "num_tokens", "n_tokens", "dataset_tokens"),
        "instance_count": ("count", "nodes", "num_nodes", "n_nodes", "nnodes", "node_count", "instances", "machines"),
        "count": ("nodes", "num_nodes", "n_nodes", "nnodes", "node_count", "instance_count", "instances", "machines"),
        "global_batch": ("global_batch_size", "gbs", "batch", "batch_size", "total_batch_size", "train_batch_size"),
        "instance": ("instance_type", "machine", "machine_type", "gpu"),
        "cluster": ("instance", "instance_type", "machine", "machine_type", "gpu", "hardware"),
        "sequence_length": (
            *("seq", "seq_len", "seqlen", "seq_length", "context", "context_length", "context_window", "max_length"),
            *("max_seq_length", "block_size", "n_ctx", "max_context_width"),
        ),
        "global_batch_size": ("global_batch", "gbs", "total_batch_size", "batch", "train_batch_size"),
        "batch_size": ("micro_batch_size", "mbs", "per_device_train_batch_size", "per_gpu_batch_size"),
        "gradient_accumulation_steps": ("grad_accum", "accumulation", "accumulation_steps", "grad_acc"),
        "microbatches": ("num_microbatches", "micro_batches", "chunks"),
        "precision": ("dtype", "fp16", "bf16", "mixed_precision", "torch_dtype", "half"),
        "adapter": ("lora", "qlora", "peft", "lora_rank", "rank", "lora_r"),
        "lora": ("adapter", "peft", "lora_rank", "rank"),
        "tensor_parallel_degree": (
            "tp",
            "tensor_parallel",
            "tensor_parallelism",
            "tp_degree",
            "tensor_model_parallel_size",
        ),
        "pipeline_parallel_degree": (
            *("pp", "pipeline_parallel", "pipeline_parallelism", "pp_degree", "partitions", "stages"),
            "pipeline_model_parallel_size",
        ),
        "context_parallel_degree": ("cp", "context_parallel", "context_parallelism", "cp_degree"),
        "expert_parallel_degree": ("ep", "expert_parallel", "expert_parallelism", "ep_degree"),
        "sharded_data_parallel_degree": ("sdp", "sharded_data_parallel", "zero", "shards"),
        "hybrid_shard_degree": ("shard_degree", "shards", "sharding_degree"),
        "activation_checkpointing": ("checkpointing", "gradient_checkpointing", "recompute", "recomputation"),
        "offload_activations": ("offload", "cpu_offload", "offloading", "activation_offloading"),
        "vocab": ("vocab_size", "vocabulary", "vocabulary_size"),
        "hidden": ("hidden_size", "d_model", "n_embd", "width", "hidden_width"),
        "layers": ("num_layers", "n_layer", "num_hidden_layers", "depth"),
        "heads": ("num_heads", "n_head", "num_attention_heads"),
        "objective": ("goal", "target", "optimize_for"),
        "min_fit_probability": ("fit_probability", "probability", "confidence", "margin"),
        "attention": ("flash_attention", "flash", "attn", "attn_implementation", "sdpa"),
        "optimizer": ("optim", "adam", "adamw"),
        "framework": ("pytorch", "torch", "tensorflow", "pytorch_version", "framework_version"),
        "library": ("lib", "backend", "strategy", "smp", "version"),
        "training": ("mode", "kind", "task", "finetune", "fine_tune", "fine_tuning", "pretraining"),
        "data": ("dataset", "data_path", "training_data"),
        "script": ("entry_point", "train_script", "source", "path"),
        "model": ("model_name", "config", "parameters", "size"),
    }
)
"""Keywords, each with other names for the same thing. The first keyword that a call takes is meant."""


def meant(name: str, keywords: Collection[str]) -> str:
    """The keyword of a call that an unknown name means; empty if none is similar.

    Examples
    --------
    >>> meant("days", {"max_days", "data", "tokens"})
    'max_days'
    >>> meant("sequence_lenght", {"sequence_length"})
    'sequence_length'
    """
    plain = name.lower().replace("-", "_")
    for keyword, synonyms in _MEANINGS.items():
        if keyword in keywords and plain in synonyms:
            return keyword
    near = difflib.get_close_matches(plain, sorted(keywords), n=1) if len(plain) <= _LONGEST else []
    return near[0] if near else ""


def with_exact_keywords(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The function, which answers an unknown keyword with the one that is meant.

    Raises
    ------
    AdvisorError
        The function takes no such keyword.
    """
    names = [
        name for name, parameter in signature(function).parameters.items() if parameter.kind.name != "POSITIONAL_ONLY"
    ]

    @wraps(function)
    def answer(*positional: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        for name in keywords:
            if name not in names:
                keyword = meant(name, names)
                hint = f"did you mean {keyword}?" if keyword else f"it takes {', '.join(names)}."
                raise AdvisorError(f"{function.__name__} takes no argument {name!r}; {hint}")
        return function(*positional, **keywords)

    return answer
