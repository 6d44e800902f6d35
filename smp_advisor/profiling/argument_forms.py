"""Forms that an argument of a forward method may have, by its name and by the attributes of the model."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["LABELS", "Form", "first_layer", "forms_of_argument", "forms_of_layer", "forms_of_main_argument", "longest"]

LABELS = frozenset({"labels", "label", "targets", "target", "y", "lm_labels", "future_values"})
_MASKS = frozenset({"mask", "attention_mask", "src_mask", "padding_mask", "key_padding_mask", "pad_mask"})
_TIMES = frozenset({"t", "time", "times", "timestep", "timesteps", "sigma", "noise_level", "noise_labels", "guidance"})
_IMAGES = frozenset({"img", "image", "images", "imgs", "pixel_values", "pixels", "picture", "image1", "image2"})
_AUDIO = frozenset(
    {"audio", "raw_audio", "wav", "wavs", "waveform", "waveforms", "mix", "sound", "speech", "input_values"}
)
_SECOND_TOKENS = frozenset({"tgt", "trg", "decoder_input_ids", "target_tokens", "tgt_tokens", "tgt_ids"})
_TOKENS = frozenset({"tokens", "input_ids", "ids", "idx", "text", "token_ids"})
_CONTEXTS = frozenset({"encoder_hidden_states", "context", "cond_tokens", "memory", "encoder_output", "queries"})
_COORDINATES = frozenset({"coors", "coords", "coordinates", "positions_3d", "xyz", "pos"})
_IMAGE_SIZES = (224, 256, 32, 64, 28, 128, 299, 384)
_AUDIO_LENGTHS = (65_536, 16_000, 160_000)
_FEATURES = (80, 40, 64, 128)
"""Features of a frame of speech."""
_SIZE_NAMES = ("img_size", "image_size", "input_size", "input_resolution", "img_dim", "resolution", "sample_size")
_CONTEXT_WIDTHS = (
    "cross_attention_dim", "joint_attention_dim", "caption_channels", "text_embed_dim", "context_dim", "cond_dim",
    "encoder_hidden_size", "queries_dim", "dim",
)  # fmt: skip
_ROW_LENGTHS = ("lookback_len", "input_len", "context_length", "context_len", "num_frames", "max_length", "window_size")
_ROW_WIDTHS = ("num_variates", "num_features", "n_features", "num_input_channels", "num_mel_bins", "d_in", "n_mels")
_LENGTH_NAMES = (
    "max_seq_len", "max_seq_length", "max_length", "max_len", "seq_len", "seq_length", "block_size", "context_length",
    "context_size", "n_positions", "max_position_embeddings", "num_positions", "n_ctx",
)  # fmt: skip
_CONTEXT_TOKENS = 77
"""Tokens of a text that conditions images: those of CLIP."""
_EDGES_PER_NODE = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """Shape and type of an argument."""

    text: str
    dims: tuple[int | None, ...]
    """Sizes after the batch; None is the number of tokens."""
    dtype: torch.dtype = torch.float32
    leading: Literal["batch", "rows", "edges", "none"] = "batch"
    """First dimension: samples; all tokens of all samples (the nodes of a graph); edges between these nodes, after two
    ends; or none of these."""
    values: Literal["any", "tokens", "zeros"] = "any"
    """Values of integers that are no free choice: the number of tokens of each sample, or the first category."""

    @property
    def has_sequence(self) -> bool:
        """Whether a dimension is the number of tokens."""
        return None in self.dims or self.leading in {"rows", "edges"}

    def tensor(self, batch: int, sequence: int) -> Tensor:
        """Tensor on the meta device; lengths have their values."""
        if self.values != "any":
            return torch.full((batch, *map(int, filter(None, self.dims))), sequence if self.values == "tokens" else 0)
        leading = {"batch": (batch,), "rows": (batch * sequence,), "none": ()}.get(self.leading)
        if leading is None:
            leading = (2, batch * sequence * _EDGES_PER_NODE)
        sizes = tuple(sequence if size is None else size for size in self.dims)
        return torch.empty((*leading, *sizes), dtype=self.dtype, device="meta")


def _tokens(text: str) -> Form:
    return Form(text=text, dims=(None,), dtype=torch.long)


def _image(colors: int, *sizes: int) -> Form:
    text = " x ".join(map(str, sizes))
    return Form(text=f"images of {text}" if len(sizes) == 2 else f"volumes of {text}", dims=(colors, *sizes))


def _video(colors: int, frames: int, size: int, *, frames_first: bool = False) -> Form:
    dims = (frames, colors, size, size) if frames_first else (colors, frames, size, size)
    return Form(text=f"{frames} frames of {size} x {size}", dims=dims)


def forms_of_main_argument(model: nn.Module, first: nn.Module, name: str) -> Iterator[Form]:
    """Forms of the first argument, the most likely first."""
    yield from _by_name(model, name)
    if name == "sample" or (name == "hidden_states" and _attribute(model, "sample_size", "sample_height")):
        yield from _latents(model)
    elif name == "hidden_states" and (width := _attribute(model, "in_channels")):
        yield Form(text="latents", dims=(None, width))
    yield from forms_of_layer(model, first, name)


def forms_of_layer(model: nn.Module, first: nn.Module, name: str) -> Iterator[Form]:  # noqa: C901 - one form per layer
    """Forms that the first layer accepts."""
    channels = int(getattr(first, "in_channels", 0) or 0)
    if isinstance(first, nn.Embedding):
        yield _tokens("tokens")
        for length in _fixed_lengths(model):
            yield Form(text=f"{length} tokens", dims=(length,), dtype=torch.long)
        yield from _rows(model)
    elif isinstance(first, nn.Conv2d):
        colors = (channels,) if channels <= 4 else (channels, 3, 1)
        for size, color in itertools.product(_image_sizes(model), colors):
            yield _image(color, size, size)
        yield from (Form(text="numbers of a sequence", dims=(None, width)) for width in _FEATURES)
        yield from (Form(text="sound", dims=(2, length)) for length in _AUDIO_LENGTHS)
        yield from (Form(text="sound", dims=(length,)) for length in _AUDIO_LENGTHS)
    elif isinstance(first, nn.Conv1d):
        yield Form(text="numbers", dims=(channels, None))
        for length in _fixed_lengths(model):
            yield from (Form(text="numbers", dims=(channels, length * stride)) for stride in (1, 2, 4))
        yield Form(text="numbers", dims=(channels, 1024))
        yield Form(text="numbers of a sequence", dims=(None, channels))
        yield from (Form(text="sound", dims=(1, length)) for length in _AUDIO_LENGTHS)
        yield from (Form(text="sound", dims=(length,)) for length in _AUDIO_LENGTHS)
    elif isinstance(first, nn.Conv3d):
        cubes = [_image(channels, size, size, size) for size in (*_attribute_sizes(model), 96, 32)]
        videos = [_video(channels, frames, size) for frames, size in ((16, 112), (16, 224), (8, 32))]
        yield from (*videos, *cubes) if channels == 3 else (*cubes, *videos)
    else:
        width = _input_width(first)
        rows = Form(text="numbers", dims=(width,))
        sequence = Form(text="numbers of a sequence", dims=(None, width))
        images = [_image(colors, size, size) for size in _image_sizes(model)[:5] for colors in (3, 1)]
        attends = any(isinstance(module, nn.RNNBase | nn.MultiheadAttention) for module in model.modules())
        if name in _IMAGES:
            yield from images
        yield from (sequence, rows) if attends else (rows, sequence)
        yield from _rows(model)
        for length in _fixed_lengths(model):
            yield Form(text=f"{length} rows of numbers", dims=(length, width))
        if name not in _IMAGES:
            yield from images
        yield from (_video(3, 16, size) for size in (128, 112, 224))
        yield from (
            Form(text=f"images of {n} x {n}, colors last", dims=(n, n, colors)) for n in (224, 32) for colors in (3, 1)
        )
        yield from (Form(text="sound", dims=(length,)) for length in _AUDIO_LENGTHS)
        yield _tokens("tokens")


def forms_of_argument(model: nn.Module, name: str, main: Form, *, is_language: bool) -> list[Form]:  # noqa: C901
    """Forms of a further argument, by its name; empty for an unknown meaning."""
    ids = Form(text="classes", dims=(), dtype=torch.long)
    if name in LABELS:
        values = Form(text="numbers", dims=(1,))
        same = Form(text="numbers", dims=main.dims, dtype=main.dtype)
        is_text = is_language or main.text == "sound"
        options = [_tokens("labels"), ids, values] if is_text else [ids, _tokens("labels"), values]
        return [*options, *([] if is_language or not main.dims else [same])]
    if name in _MASKS:
        return [Form(text="a mask", dims=(None,), dtype=torch.bool)] if main.has_sequence or is_language else []
    if name in _TIMES:
        return [ids, Form(text="times", dims=())]
    if name in _SECOND_TOKENS:
        return [_tokens("tokens")]
    if name == "edge_index":
        return [Form(text="edges", dims=(), dtype=torch.long, leading="edges")]
    if name.endswith("lengths") or name in {"lens", "input_length"}:
        return [Form(text="lengths", dims=(), dtype=torch.long, values="tokens")]
    if name in {"class_labels", "classes", "class_ids"}:
        return [ids]
    if name == "pooled_projections":
        return [Form(text="numbers", dims=(_attribute(model, "pooled_projection_dim") or 768,))]
    if name in {"img_ids", "txt_ids"}:
        tokens = None if name == "img_ids" else _CONTEXT_TOKENS
        return [Form(text="positions", dims=(tokens, 3), leading="none")]
    if name in _CONTEXTS:
        widths = [value for key in _CONTEXT_WIDTHS if isinstance(value := _attribute(model, key), int) and value]
        tokens = _attribute(model, "max_text_seq_length") or _CONTEXT_TOKENS
        return [Form(text="a text's states", dims=(tokens, width)) for width in dict.fromkeys([*widths, 768])]
    return list(_by_name(model, name)) or ([_tokens("tokens")] if name in _TOKENS else [])


def _by_name(model: nn.Module, name: str) -> Iterator[Form]:  # noqa: C901 - one form per meaning
    """Forms of arguments whose names have one usual meaning."""
    if name in _TOKENS:
        yield _tokens("tokens")
    elif name in _COORDINATES:
        yield Form(text="coordinates", dims=(None, 3))
    elif "categ" in name or name.endswith("_cat"):
        columns = _attribute(model, "num_categories", "n_categories", "cat_dims")
        yield Form(text="categories", dims=(columns or 1,), dtype=torch.long, values="zeros")
    elif "numer" in name or "contin" in name or name.endswith("_num"):
        columns = _attribute(model, "num_continuous", "n_cont_features", "num_numerical")
        yield Form(text="numbers", dims=(columns or 1,))
    elif name in _AUDIO:
        width, rows = _attribute(model, "num_mel_bins"), _attribute(model, "max_length")
        if width and rows:
            yield Form(text=f"a spectrogram of {rows} x {width}", dims=(rows, width))
        channels = _attribute(model, "audio_channels") or 1
        yield from (Form(text="sound", dims=(length,)) for length in _AUDIO_LENGTHS)
        yield from (
            Form(text="sound", dims=(colors, length))
            for length in _AUDIO_LENGTHS
            for colors in dict.fromkeys((channels, 2, 1))
        )
    elif name in {"past_values", "future_values"}:
        length = _attribute(model, "context_length" if name == "past_values" else "prediction_length")
        width = _attribute(model, "num_input_channels", "input_size")
        if length and width:
            yield Form(text="a time series", dims=(length, width))
    elif name in _IMAGES and not isinstance(first_layer(model), nn.Linear | nn.RNNBase):
        frames = _attribute(model, "num_frames")
        colors = _attribute(model, "num_channels") or 3
        for size in _image_sizes(model):
            if frames and name == "pixel_values":
                yield _video(colors, frames, size, frames_first=True)
            yield _image(colors, size, size)


def first_layer(model: nn.Module) -> nn.Module | None:
    """The first registered layer that determines the form of inputs, of torch or of another library."""
    layers = nn.Embedding | nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.RNNBase
    modules = list(model.modules())
    usual = next((module for module in modules if isinstance(module, layers)), None)
    return usual or next((module for module in modules if _input_width(module)), None)


def _input_width(layer: nn.Module) -> int:
    """Features of the input of a linear or recurrent layer; 0 if it has no such attribute."""
    for name in ("in_features", "input_size", "in_channels"):
        value = getattr(layer, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return 0


def _latents(model: nn.Module) -> Iterator[Form]:
    """Latent images, videos and sounds of a diffusion model."""
    colors = _attribute(model, "in_channels") or 4
    height = _attribute(model, "sample_size", "sample_height") or 64
    width = _attribute(model, "sample_width") or height
    frames = _attribute(model, "sample_frames", "num_frames")
    if frames:
        latent_frames = (frames - 1) // (_attribute(model, "temporal_compression_ratio") or 1) + 1
        yield Form(
            text=f"latents of {latent_frames} frames of {height} x {width}", dims=(latent_frames, colors, height, width)
        )
        yield Form(
            text=f"latents of {latent_frames} frames of {height} x {width}", dims=(colors, latent_frames, height, width)
        )
    if height > 1024:
        yield Form(text=f"sound of {height} samples", dims=(colors, height))
        return
    yield Form(text=f"latents of {height} x {width}", dims=(colors, height, width))
    yield Form(text="latents", dims=(None, colors))


def _rows(model: nn.Module) -> Iterator[Form]:
    """Rows of numbers whose width, and possibly length, are attributes of the model or of its first linear layer."""
    width = _attribute(model, *_ROW_WIDTHS)
    length = _attribute(model, *_ROW_LENGTHS)
    if width and length:
        yield Form(text=f"{length} rows of {width} numbers", dims=(length, width))
    linear = next((module for module in model.modules() if isinstance(module, nn.Linear)), None)
    for size in dict.fromkeys((width, getattr(linear, "in_features", None))):
        if size:
            yield Form(text="numbers of a sequence", dims=(None, size))


def _attribute(model: nn.Module, *names: str) -> int | None:
    """The first positive integer among the names, of the model or of its configuration."""
    config = getattr(model, "config", None)
    parts = [getattr(config, part, None) for part in ("vision_config", "text_config")]
    for name in names:
        for owner in (model, config, *parts):
            value = owner.get(name) if isinstance(owner, Mapping) else getattr(owner, name, None)
            value = value[0] if isinstance(value, list | tuple) and value else value
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


def _attribute_sizes(model: nn.Module) -> list[int]:
    """Sizes of images that attributes of the model's modules and its configuration name."""
    sizes: list[int] = []
    config = getattr(model, "config", None)
    for owner in (*model.modules(), config, getattr(config, "vision_config", None)):
        for name in _SIZE_NAMES:
            value = owner.get(name) if isinstance(owner, Mapping) else getattr(owner, name, None)
            value = value[0] if isinstance(value, list | tuple) and value else value
            if isinstance(value, int) and 8 <= value <= 1024:
                sizes.append(value)
    return list(dict.fromkeys(sizes))


def _image_sizes(model: nn.Module) -> Sequence[int]:
    """Sizes that attributes name, that a table of positions fits, then usual ones."""
    return list(dict.fromkeys([*_attribute_sizes(model), *_patched_sizes(model), *_IMAGE_SIZES]))


def _patched_sizes(model: nn.Module) -> Iterator[int]:
    """Sizes of square images whose patches are as many as the positions of a table."""
    lengths = {length - extra for length in _table_lengths(model) for extra in (0, 1, 2)}
    sides = sorted(math.isqrt(length) for length in lengths if length >= 16 and math.isqrt(length) ** 2 == length)
    patches: list[int] = []
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.stride == module.kernel_size and module.stride[0] >= 4:
            patches.append(module.stride[0])
        elif isinstance(module, nn.Linear):
            sides_by_colors = {colors: math.isqrt(module.in_features // colors) for colors in (3, 1)}
            patches += [side for colors, side in sides_by_colors.items() if side**2 * colors == module.in_features]
            break
    yield from (side * patch for side in sides for patch in patches[:2] if patch >= 4 and 64 <= side * patch <= 1024)


def _table_lengths(model: nn.Module) -> list[int]:
    """Rows of the tables of positions."""
    tensors = itertools.chain(model.named_parameters(), model.named_buffers())
    return [tensor.shape[-2] for name, tensor in tensors if "pos" in name.lower() and tensor.ndim >= 2]


def _fixed_lengths(model: nn.Module) -> list[int]:
    """Lengths of position tables, with and without a class token: inputs of any other length may be refused."""
    lengths = [length - extra for length in _table_lengths(model) for extra in (0, 1)]
    return [length for length in dict.fromkeys(lengths) if length >= 4][:4]


def longest(model: nn.Module) -> int:
    """Maximum tokens: of a table of positions, or by an attribute with a usual name; 0 for no limit."""
    tables = {name: module for name, module in model.named_modules() if isinstance(module, nn.Embedding)}
    relative = {name for name in tables if re.search(r"rel|bias|bucket", name.lower())}
    positions = [
        table.num_embeddings
        for name, table in tables.items()
        if re.search(r"pos|wpe", name.lower()) and name not in relative
    ]
    embeddings = [table.num_embeddings for name, table in tables.items() if name not in relative]
    limits = [min(positions)] if positions else [min(embeddings)] if len(embeddings) > 1 else []
    config = getattr(model, "config", None)
    for owner in (*model.modules(), config):
        values = [
            owner.get(name) if isinstance(owner, Mapping) else getattr(owner, name, None) for name in _LENGTH_NAMES
        ]
        limits += [value for value in values if isinstance(value, int) and value >= 8]
    return min(limits, default=0)
