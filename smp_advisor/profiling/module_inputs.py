"""Candidate inputs of a module that no configuration describes, from its forward method, first layer and attributes."""

from __future__ import annotations

import inspect
import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from smp_advisor.profiling.example import ExampleInputs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["forward_arguments", "module_candidates"]

_LABELS = frozenset({"labels", "label", "targets", "target", "y", "lm_labels"})
_MASKS = frozenset({"mask", "attention_mask", "src_mask", "padding_mask", "key_padding_mask", "pad_mask"})
_TIMES = frozenset({"t", "time", "times", "timestep", "timesteps", "sigma", "noise_level"})
_IMAGES = frozenset({"img", "image", "images", "imgs", "pixel_values", "pixels", "picture"})
_SECOND_TOKENS = frozenset({"tgt", "trg", "decoder_input_ids", "target_tokens", "tgt_tokens", "tgt_ids"})
_IMAGE_SIZES = (224, 256, 32, 64, 28, 128, 299, 384)
_SIZE_NAMES = ("img_size", "image_size", "input_size", "input_resolution", "img_dim", "resolution")
_LENGTH_NAMES = (
    "max_seq_len", "max_seq_length", "max_length", "max_len", "seq_len", "seq_length", "block_size", "context_length",
    "context_size", "n_positions", "max_position_embeddings", "num_positions", "n_ctx",
)  # fmt: skip
_MOST = 24
"""Candidates to try at most."""

_Part = tuple[str, bool, "Callable[[int, int], Tensor]"]
"""Description of an argument, whether it has a sequence, and its tensor for (batch, sequence)."""


def forward_arguments(model: nn.Module) -> dict[str, inspect.Parameter]:
    """Parameters of the forward method by name; empty if its signature is unknown."""
    try:
        return dict(inspect.signature(model.forward).parameters)
    except (TypeError, ValueError):
        return {}


def module_candidates(model: nn.Module) -> list[ExampleInputs]:
    """Candidate inputs, the most likely first; empty if a required argument has an unknown meaning."""
    kinds = nn.Embedding | nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.RNNBase
    first = next((module for module in model.modules() if isinstance(module, kinds)), None)
    positional = [
        (name, parameter)
        for name, parameter in forward_arguments(model).items()
        if parameter.kind in {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    ]
    if first is None or not positional:
        return []
    main, *following = positional
    selected = [
        name for name, parameter in following if parameter.default is inspect.Parameter.empty or name in _LABELS
    ]
    is_language = isinstance(first, nn.Embedding)
    options = [list(_main(model, first, main[0]))]
    for name in selected:
        options.append(_following(name, is_language=is_language))
        if not options[-1]:
            return []
    names = [main[0], *selected]
    longest = _longest(model)
    combinations = itertools.islice(itertools.product(*options), _MOST)
    return [_combined(dict(zip(names, parts, strict=True)), longest) for parts in combinations]


def _combined(parts: Mapping[str, _Part], longest: int) -> ExampleInputs:
    def make(batch: int, sequence: int) -> dict[str, Any]:
        return {name: tensor(batch, sequence) for name, (_, _, tensor) in parts.items()}

    (main, (text, has_sequence, _)), *following = parts.items()
    names = "".join(f", {name}" for name, _ in following)
    return ExampleInputs(
        make=make,
        has_sequence=has_sequence,
        longest=longest if has_sequence else 0,
        description=f"{main}: {text}{names} (inferred)",
    )


def _main(model: nn.Module, first: nn.Module, name: str) -> Iterator[_Part]:  # noqa: C901 - one form per layer
    """Forms of the first argument."""
    channels = getattr(first, "in_channels", 0)
    if isinstance(first, nn.Embedding):
        yield _tokens("tokens")
        for length in _fixed_lengths(model):
            yield f"{length} tokens", False, _shape(length, dtype=torch.long)
    elif isinstance(first, nn.Conv2d):
        for size in _image_sizes(model):
            yield f"images of {size} x {size}", False, _shape(channels, size, size)
    elif isinstance(first, nn.Conv1d):
        yield "numbers", True, lambda batch, sequence: _empty(batch, channels, sequence)
        yield "numbers", False, _shape(channels, 1024)
    elif isinstance(first, nn.Conv3d):
        for frames, size in ((16, 112), (16, 224), (32, 32)):
            yield f"{frames} frames of {size} x {size}", False, _shape(channels, frames, size, size)
    else:
        width = first.in_features if isinstance(first, nn.Linear) else int(getattr(first, "input_size", 0))
        rows: _Part = ("numbers", False, _shape(width))
        sequence: _Part = ("numbers of a sequence", True, lambda batch, tokens: _empty(batch, tokens, width))
        images: list[_Part] = [
            (f"images of {size} x {size}", False, _shape(colors, size, size))
            for size in _image_sizes(model)[:5]
            for colors in (3, 1)
        ]
        attends = any(isinstance(module, nn.RNNBase | nn.MultiheadAttention) for module in model.modules())
        if name in _IMAGES:
            yield from images
        yield from (sequence, rows) if attends else (rows, sequence)
        for length in _fixed_lengths(model):
            yield f"{length} rows of numbers", False, _shape(length, width)
        if name not in _IMAGES:
            yield from images
        yield _tokens("tokens")


def _following(name: str, *, is_language: bool) -> list[_Part]:
    """Forms of a further argument; empty for an unknown meaning."""
    classes: _Part = ("classes", False, lambda batch, _: _empty(batch, dtype=torch.long))
    if name in _LABELS:
        numbers: _Part = ("numbers", False, lambda batch, _: _empty(batch, 1))
        return [_tokens("labels"), classes, numbers] if is_language else [classes, _tokens("labels"), numbers]
    if name in _MASKS:
        return [("a mask", True, lambda batch, tokens: _empty(batch, tokens, dtype=torch.bool))]
    if name in _TIMES:
        return [classes, ("times", False, lambda batch, _: _empty(batch))]
    if name in _SECOND_TOKENS and is_language:
        return [_tokens("tokens")]
    return []


def _tokens(text: str) -> _Part:
    return text, True, lambda batch, sequence: _empty(batch, sequence, dtype=torch.long)


def _shape(*sizes: int, dtype: torch.dtype = torch.float32) -> Callable[[int, int], Tensor]:
    return lambda batch, _: _empty(batch, *sizes, dtype=dtype)


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _image_sizes(model: nn.Module) -> Sequence[int]:
    """Sizes that attributes of the model's modules name, then usual ones."""
    sizes: list[int] = []
    for module in model.modules():
        for name in _SIZE_NAMES:
            value = getattr(module, name, None)
            value = value[0] if isinstance(value, list | tuple) and value else value
            if isinstance(value, int) and 8 <= value <= 4096:
                sizes.append(value)
    return list(dict.fromkeys([*sizes, *_IMAGE_SIZES]))


def _fixed_lengths(model: nn.Module) -> list[int]:
    """Lengths of position tables, with and without a class token: inputs of any other length may be refused."""
    lengths: list[int] = []
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if "pos" in name.lower() and tensor.ndim >= 2:
            lengths += [tensor.shape[-2], tensor.shape[-2] - 1]
    return [length for length in dict.fromkeys(lengths) if length >= 4][:4]


def _longest(model: nn.Module) -> int:
    """Maximum tokens: of a second, shorter embedding table, or by an attribute with a usual name; 0 for no limit."""
    tables = [module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)]
    limits = [min(tables)] if len(tables) > 1 else []
    config = getattr(model, "config", None)
    for owner in (*model.modules(), config):
        values = [getattr(owner, name, None) for name in _LENGTH_NAMES]
        limits += [value for value in values if isinstance(value, int) and value >= 8]
    return min(limits, default=0)
