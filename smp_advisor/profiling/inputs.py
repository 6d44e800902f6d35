"""Example inputs of a model: supplied by the user, or inferred from its configuration, forward method and layers."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map, tree_map_with_path

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.example import EDGES, ExampleInputs
from smp_advisor.profiling.forward_source import forward_arguments
from smp_advisor.profiling.input_trial import working_inputs
from smp_advisor.profiling.module_inputs import detection_inputs, module_candidates
from smp_advisor.profiling.profiled_model import task_of

__all__ = ["cast_inputs", "example_inputs", "filled", "valid_ids"]

_IMAGE_SIZE = 224
_LEAST_TOKENS = 8
"""Shorter supplied inputs are not resized."""
_CHOICES = (2,)
"""Texts per sample of multiple choice."""
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def example_inputs(model: nn.Module, supplied: Any = None, *, config: Any = None) -> ExampleInputs:
    """Inputs supplied by the user, or inferred ones; of several forms, the first that the model's forward accepts.

    Supplied tensors are never extended: their tokens are the maximum.

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
        return working_inputs(model, _supplied(supplied), "pass inputs that its forward accepts")
    config = config if config is not None else getattr(model, "config", None)
    if hasattr(config, "to_dict") and hasattr(model, "main_input_name"):
        candidates = _of_transformers(model, config)
        return candidates[0] if len(candidates) == 1 else working_inputs(model, candidates, _supply(model))
    detection = detection_inputs(model)
    if detection is not None:
        return detection
    candidates = module_candidates(model)
    if not candidates:
        raise ProfileError(f"The inputs of {type(model).__name__} can't be inferred: {_supply(model)}.")
    return working_inputs(model, candidates, _supply(model))


def _supply(model: nn.Module) -> str:
    """Inputs to pass, by the arguments that the forward method requires."""
    arguments = forward_arguments(model).items()
    required = [name for name, p in arguments if p.default is p.empty and p.kind not in _VARIADIC]
    line = f"{{{', '.join(f'{name!r}: tensor' for name in required)}}}" if required else "(tensor,)"
    return (
        f"pass inputs= for its forward({', '.join(required)}), as in smpa.profile(model, inputs={line}), or a function "
        "of (batch, sequence) that returns them"
    )


def filled(inputs: Any, vocab: int, *, seed: int = 0) -> Any:
    """Real values for inputs on the meta device: token ids below `vocab`, normal numbers, masks of ones.

    Supplied values are unchanged, except ids of at least `vocab`, which a scaled copy does not have.
    """
    generator = torch.Generator().manual_seed(seed)

    def fill(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if not value.is_meta:
            lengths = value.ndim == 1 and len(set(value.tolist())) == 1
            is_ids = value.dtype in {torch.int32, torch.int64} and not lengths
            return torch.where(value >= vocab, value % vocab, value) if is_ids and vocab > 1 else value
        if value.is_floating_point():
            return torch.randn(value.shape, generator=generator, dtype=torch.float32).to(value.dtype)
        if value.dtype == torch.bool:
            return torch.ones(value.shape, dtype=torch.bool)
        return torch.randint(0, max(vocab, 1), value.shape, generator=generator, dtype=value.dtype)

    def fill_at(path: tuple[Any, ...], value: Any) -> Any:
        names = {str(getattr(key, "key", "")) for key in path}
        return value if names & EDGES else fill(value)  # edges are positions of nodes, not ids

    return tree_map_with_path(fill_at, inputs)


def cast_inputs(inputs: Any, dtype: torch.dtype) -> Any:
    """Inputs with floating-point tensors cast to the training dtype."""

    def cast(value: Any) -> Any:
        return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value

    return tree_map(cast, inputs)


def _empty(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _first_classes(*shape: int) -> Tensor:
    """Labels that are valid for any number of classes, unlike ids below the number of tokens."""
    return torch.zeros(shape, dtype=torch.long)


def _supplied(inputs: Any) -> list[ExampleInputs]:
    """The user's inputs with any batch and up to their own tokens, or with any batch only."""
    if callable(inputs):
        return [ExampleInputs(make=inputs, has_sequence=True, longest=0, description="inputs from your function")]
    if isinstance(inputs, Tensor):
        inputs = (inputs,)
    if not isinstance(inputs, Mapping | tuple | list) or not any(isinstance(v, Tensor) for v in tree_leaves(inputs)):
        raise ProfileError("inputs must contain tensors: pass a dict or tuple, or a function of (batch, sequence).")
    inputs = dict(inputs) if isinstance(inputs, Mapping) else tuple(inputs)
    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.ndim]
    batch = tensors[0].shape[0]
    tokens = [leaf for leaf in tensors if leaf.ndim >= 2 and not leaf.is_floating_point()]
    sequence = tokens[0].shape[1] if tokens else 0
    names = ", ".join(inputs) if isinstance(inputs, dict) else f"{len(inputs)} tensors"

    def resized(sequence: int) -> ExampleInputs:
        def make(new_batch: int, new_sequence: int) -> Any:
            def resize(value: Any) -> Any:
                if not isinstance(value, Tensor) or not value.ndim:
                    return value
                shape = [new_batch if value.shape[0] == batch else value.shape[0], *value.shape[1:]]
                if sequence and not (value.is_floating_point() and value.ndim > 3):
                    shape[1:] = [new_sequence if size == sequence else size for size in shape[1:]]
                return _repeated(value, shape)

            return tree_map(resize, inputs)

        return ExampleInputs(
            make=make, has_sequence=bool(sequence), longest=sequence, description=f"{names} (supplied)"
        )

    return [resized(sequence), resized(0)] if sequence >= _LEAST_TOKENS else [resized(0)]


def _repeated(value: Tensor, shape: Sequence[int]) -> Tensor:
    """The tensor with another shape, its own values repeated or cut; empty on the meta device if it has none."""
    if value.is_meta or value.layout != torch.strided:
        return torch.empty(tuple(shape), dtype=value.dtype, device="meta")
    value = value.detach().cpu()
    for dimension, size in enumerate(shape):
        if size != value.shape[dimension] and value.shape[dimension]:
            value = value.index_select(dimension, torch.arange(size) % value.shape[dimension])
    return value


def valid_ids(model: nn.Module) -> int:
    """Number of ids that are valid as tokens and as labels: by the first embedding and the last linear layer."""
    tables = [module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)]
    outputs = [module.out_features for module in model.modules() if isinstance(module, nn.Linear)]
    sizes = [*tables[:1], *(size for size in outputs[-1:] if size > 1)]
    return min(sizes, default=2)


def _own(config: Any, *names: str) -> Any:
    """Value of the first of the names that is set in the configuration or in one of its parts."""
    parts = [config, *(getattr(config, part, None) for part in ("text_config", "decoder", "encoder", "vision_config"))]
    for part in parts:
        for name in names:
            value = getattr(part, name, None) if part is not None else None
            if value is not None:
                return value
    return None


def _of_transformers(model: nn.Module, config: Any) -> list[ExampleInputs]:
    """Candidates for a model of transformers, by the name of its main input; of the usual tasks only one."""
    arguments = forward_arguments(model)
    main = str(getattr(model, "main_input_name", "input_ids"))
    task = task_of(type(model), config)
    if "pixel_values" in arguments and "input_ids" not in arguments and (main == "pixel_values" or task == "image"):
        images = _image(arguments, config)
        return [images] if task == "image" else [images, *module_candidates(model)]
    if main in {"input_ids", "inputs"} or (main == "pixel_values" and task != "other"):
        name = "inputs" if main == "inputs" and "input_ids" not in arguments else "input_ids"
        choices = _CHOICES if type(model).__name__.endswith("ForMultipleChoice") else ()
        texts = [_tokens(arguments, config, name, task, labels, choices) for labels in _label_forms(arguments, task)]
        with_images = name == "input_ids" and "pixel_values" in arguments
        return texts + [_with_images(text, arguments, config) for text in texts if with_images]
    candidates = module_candidates(model)
    if "input_ids" in arguments and "pixel_values" in arguments:
        text = _tokens(arguments, config, "input_ids", "causal", "tokens")
        candidates.insert(0, _with_images(text, arguments, config))
    if not candidates:
        raise ProfileError(f"{type(model).__name__} requires {main}, which can't be inferred: {_supply(model)}.")
    return candidates


def _with_images(text: ExampleInputs, arguments: Mapping[str, Any], config: Any) -> ExampleInputs:
    """Text with one image per sample, and the loss between both if the model computes it on request."""
    images = _image({}, config)

    def make(batch: int, sequence: int) -> dict[str, Any]:
        inputs = {**text.make(batch, sequence), **images.make(batch, sequence)}
        if "return_loss" in arguments:
            inputs["return_loss"] = True
        return inputs

    description = text.description.replace(" (inferred)", f", {images.description.replace(', labels', '')}")
    return dataclasses.replace(text, make=make, description=description)


def _label_forms(arguments: Mapping[str, Any], task: str) -> list[str]:
    """Possible forms of the labels: the usual tasks have one per token, others a class of the text or of each token."""
    if "labels" not in arguments:
        return [""]
    return ["classes", "token classes", ""] if task in {"other", "image"} else ["tokens"]


def _tokens(
    arguments: Mapping[str, Any], config: Any, name: str, task: str, labels: str, choices: tuple[int, ...] = ()
) -> ExampleInputs:
    # MusicGen has one row of audio tokens per codebook.
    codebooks = _own(config, "num_codebooks") if task == "causal" and "Musicgen" in type(config).__name__ else None

    def make(batch: int, sequence: int) -> dict[str, Any]:
        inputs: dict[str, Any] = {name: _empty(batch * (codebooks or 1), *choices, sequence)}
        if task == "sequence-to-sequence" and "decoder_input_ids" in arguments:
            inputs["decoder_input_ids"] = _empty(batch, sequence)
        if "bbox" in arguments:
            inputs["bbox"] = _empty(batch, sequence, 4)
        if labels == "classes":
            inputs["labels"] = _first_classes(batch)
        elif labels == "token classes":
            inputs["labels"] = _first_classes(batch, sequence)
        elif labels:
            inputs["labels"] = _empty(batch, sequence, codebooks) if codebooks else _empty(batch, sequence)
        if "use_cache" in arguments:
            inputs["use_cache"] = False
        return inputs

    names = ", ".join(key for key in make(1, 1) if key != "use_cache")
    return ExampleInputs(make=make, has_sequence=True, longest=_longest(config), description=f"{names} (inferred)")


def _longest(config: Any) -> int:
    """Size of the position table; 0 if positions are computed."""
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")
    value = _own(config, *names, "max_target_positions")
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
            inputs["labels"] = _first_classes(batch)
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
