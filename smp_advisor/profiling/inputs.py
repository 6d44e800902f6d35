"""Example inputs of a model: supplied by the user, or inferred from its configuration, forward method and layers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.profiled_model import task_of

__all__ = ["ExampleInputs", "cast_inputs", "example_inputs", "filled"]

_IMAGE_SIZE = 224
_LABELS = frozenset({"labels", "label", "targets", "target", "y", "lm_labels"})
_SUPPLY = "pass inputs=, a dict or tuple of example tensors, or a function of (batch, sequence) that returns them"


@dataclass(frozen=True, kw_only=True)
class ExampleInputs:
    """Example inputs of a model at any size."""

    make: Callable[[int, int], Any]
    """Tensors for (batch, sequence), by name or by position; on the meta device unless the user supplied them."""
    has_sequence: bool
    longest: int
    """Maximum tokens per sample; 0 for no limit."""
    description: str
    """Text for the user: ``input_ids, labels (inferred)``."""


def example_inputs(model: nn.Module, supplied: Any = None, *, config: Any = None) -> ExampleInputs:
    """Inputs supplied by the user, or inferred ones.

    Parameters
    ----------
    supplied
        Example tensors by name or by position, or a function of (batch, sequence) that returns them.
    config
        The transformers configuration of the model.

    Raises
    ------
    ProfileError
        The inputs can't be inferred. The sentence explains what to pass.
    """
    if supplied is not None:
        return _supplied(supplied)
    config = config if config is not None else getattr(model, "config", None)
    if hasattr(config, "to_dict") and hasattr(model, "main_input_name"):
        return _of_transformers(model, config)
    return _of_module(model)


def filled(inputs: Any, vocab: int, *, seed: int = 0) -> Any:
    """Real values for inputs on the meta device: token ids below `vocab`, normal numbers, masks of ones."""
    generator = torch.Generator().manual_seed(seed)

    def fill(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_meta:
            return value
        if value.is_floating_point():
            return torch.randn(value.shape, generator=generator, dtype=torch.float32).to(value.dtype)
        if value.dtype == torch.bool:
            return torch.ones(value.shape, dtype=torch.bool)
        return torch.randint(0, max(vocab, 1), value.shape, generator=generator, dtype=value.dtype)

    return tree_map(fill, inputs)


def cast_inputs(inputs: Any, dtype: torch.dtype) -> Any:
    """Inputs with floating-point tensors cast to the training dtype."""

    def cast(value: Any) -> Any:
        return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value

    return tree_map(cast, inputs)


def _empty(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _supplied(inputs: Any) -> ExampleInputs:
    if callable(inputs):
        return ExampleInputs(make=inputs, has_sequence=True, longest=0, description="inputs from your function")
    if isinstance(inputs, Tensor):
        inputs = (inputs,)
    if not isinstance(inputs, Mapping | tuple | list) or not any(isinstance(v, Tensor) for v in tree_leaves(inputs)):
        raise ProfileError(f"inputs must contain tensors: {_SUPPLY}.")
    inputs = dict(inputs) if isinstance(inputs, Mapping) else tuple(inputs)
    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.ndim]
    batch = tensors[0].shape[0]
    tokens = [leaf for leaf in tensors if leaf.ndim >= 2 and not leaf.is_floating_point()]
    sequence = tokens[0].shape[1] if tokens else 0

    def make(new_batch: int, new_sequence: int) -> Any:
        def resize(value: Any) -> Any:
            if not isinstance(value, Tensor) or not value.ndim:
                return value
            shape = [new_batch if value.shape[0] == batch else value.shape[0], *value.shape[1:]]
            if sequence and not (value.is_floating_point() and value.ndim > 3):
                shape[1:] = [new_sequence if size == sequence else size for size in shape[1:]]
            return torch.empty(shape, dtype=value.dtype, device="meta")

        return tree_map(resize, inputs)

    names = ", ".join(inputs) if isinstance(inputs, dict) else f"{len(inputs)} tensors"
    return ExampleInputs(make=make, has_sequence=bool(sequence), longest=0, description=f"{names} (supplied)")


def _arguments(model: nn.Module) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(model.forward).parameters)
    except (TypeError, ValueError):
        return {}


def _own(config: Any, *names: str) -> Any:
    """Value of the first of the names that is set in the configuration or in one of its parts."""
    parts = [config, *(getattr(config, part, None) for part in ("text_config", "decoder", "encoder", "vision_config"))]
    for part in parts:
        for name in names:
            value = getattr(part, name, None) if part is not None else None
            if value is not None:
                return value
    return None


def _of_transformers(model: nn.Module, config: Any) -> ExampleInputs:
    arguments = _arguments(model)
    main = str(getattr(model, "main_input_name", "input_ids"))
    task = task_of(type(model), config)
    if "pixel_values" in arguments and "input_ids" not in arguments and (main == "pixel_values" or task == "image"):
        return _image(arguments, config)
    if main in {"input_ids", "pixel_values", "inputs"}:
        name = "inputs" if main == "inputs" and "input_ids" not in arguments else "input_ids"
        return _tokens(arguments, config, name, task)
    raise ProfileError(f"{type(model).__name__} requires {main}, which can't be inferred: {_SUPPLY}.")


def _tokens(arguments: Mapping[str, Any], config: Any, name: str, task: str) -> ExampleInputs:
    class_labels = task in {"other", "image"}
    # MusicGen has one row of audio tokens per codebook.
    codebooks = _own(config, "num_codebooks") if task == "causal" and "Musicgen" in type(config).__name__ else None

    def make(batch: int, sequence: int) -> dict[str, Any]:
        inputs: dict[str, Any] = {name: _empty(batch * (codebooks or 1), sequence)}
        if task == "sequence-to-sequence" and "decoder_input_ids" in arguments:
            inputs["decoder_input_ids"] = _empty(batch, sequence)
        if "bbox" in arguments:
            inputs["bbox"] = _empty(batch, sequence, 4)
        if "labels" in arguments:
            rows = (batch,) if class_labels else (batch, sequence)
            inputs["labels"] = _empty(*rows, codebooks) if codebooks else _empty(*rows)
        if "use_cache" in arguments:
            inputs["use_cache"] = False
        return inputs

    names = ", ".join(key for key in make(1, 1) if key != "use_cache")
    return ExampleInputs(make=make, has_sequence=True, longest=_longest(config), description=f"{names} (inferred)")


def _longest(config: Any) -> int:
    """Size of the position table; 0 if positions are computed."""
    value = _own(config, "max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")
    if not isinstance(value, int) or value < 8:
        return 0
    # RoBERTa-like models count positions from the padding index.
    reserved = 2 if value % 2 == 0 and value % 32 == 2 else 0
    return value - reserved


def _image(arguments: Mapping[str, Any], config: Any) -> ExampleInputs:
    height, width = _pair(_own(config, "image_size", "img_size", "input_size"))
    channels = _own(config, "num_channels", "in_channels", "in_chans")
    channels = channels if isinstance(channels, int) else 3

    def make(batch: int, _: int) -> dict[str, Any]:
        inputs = {"pixel_values": _empty(batch, channels, height, width, dtype=torch.float32)}
        if "labels" in arguments:
            inputs["labels"] = _empty(batch)
        return inputs

    description = f"pixel_values of {height} x {width}, labels (inferred)"
    return ExampleInputs(make=make, has_sequence=False, longest=0, description=description)


def _pair(size: Any) -> tuple[int, int]:
    if isinstance(size, int) and size > 0:
        return size, size
    if isinstance(size, Mapping):
        size = [size.get("height", _IMAGE_SIZE), size.get("width", _IMAGE_SIZE)]
    if isinstance(size, list | tuple) and len(size) >= 2:
        return int(size[-2]), int(size[-1])
    if isinstance(size, list | tuple) and len(size) == 1:
        return int(size[0]), int(size[0])
    return _IMAGE_SIZE, _IMAGE_SIZE


def _of_module(model: nn.Module) -> ExampleInputs:
    """Inputs of a module not from transformers, inferred from its first layer and its forward method."""
    first = next((m for m in model.modules() if isinstance(m, nn.Embedding | nn.Linear | nn.Conv2d | nn.Conv1d)), None)
    positional = [
        (name, parameter)
        for name, parameter in _arguments(model).items()
        if parameter.kind in {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    ]
    required = [name for name, parameter in positional if parameter.default is inspect.Parameter.empty]
    if first is None or not positional or any(name not in _LABELS for name in required[1:]):
        names = f" ({', '.join(required)})" if required else ""
        raise ProfileError(f"The inputs of {type(model).__name__}.forward{names} can't be inferred: {_SUPPLY}.")
    labels = next((name for name, _ in positional[1:] if name in _LABELS), None)
    return _of_first_layer(model, first, positional[0][0], labels)


def _of_first_layer(
    model: nn.Module, first: nn.Embedding | nn.Linear | nn.Conv2d | nn.Conv1d, name: str, labels: str | None
) -> ExampleInputs:
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding)]
    has_sequence = isinstance(first, nn.Embedding)

    def make(batch: int, sequence: int) -> dict[str, Any]:
        if isinstance(first, nn.Embedding):
            inputs = {name: _empty(batch, sequence)}
        elif isinstance(first, nn.Conv2d):
            inputs = {name: _empty(batch, first.in_channels, _IMAGE_SIZE, _IMAGE_SIZE, dtype=torch.float32)}
        elif isinstance(first, nn.Conv1d):
            inputs = {name: _empty(batch, first.in_channels, sequence, dtype=torch.float32)}
        else:
            inputs = {name: _empty(batch, first.in_features, dtype=torch.float32)}
        if labels:
            inputs[labels] = _empty(batch, sequence) if isinstance(first, nn.Embedding) else _empty(batch)
        return inputs

    # A second, shorter embedding table contains positions.
    longest = min((t.num_embeddings for t in tables), default=0) if len(tables) > 1 else 0
    kind = {nn.Embedding: "tokens", nn.Conv2d: f"images of {_IMAGE_SIZE} x {_IMAGE_SIZE}"}.get(type(first), "numbers")
    return ExampleInputs(
        make=make,
        has_sequence=has_sequence or isinstance(first, nn.Conv1d),
        longest=longest,
        description=f"{name}: {kind}{', ' + labels if labels else ''} (inferred)",
    )
