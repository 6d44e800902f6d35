"""Forms that the arguments of a forward method may have, by their names, the layers that read them, and attributes."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

import torch
from torch import nn

from smp_advisor.profiling.example import (
    ADJACENCY,
    AUDIO,
    AUDIO_LENGTHS,
    CONTEXT_TOKENS,
    CONTEXT_WIDTHS,
    CONTEXTS,
    COORDINATES,
    EDGES,
    FEATURES,
    IMAGES,
    INTEGERS,
    LABELS,
    MASKS,
    ROW_LENGTHS,
    ROW_WIDTHS,
    SECOND_TOKENS,
    SINGLE_IDS,
    STATES,
    TIMES,
    TOKENS,
    Form,
    image_form,
    tokens_form,
    video_form,
)
from smp_advisor.profiling.module_attributes import (
    attribute,
    attribute_sizes,
    concatenated_widths,
    first_layer,
    first_layers,
    fixed_lengths,
    image_sizes,
    input_width,
    list_lengths,
    rare_widths,
    table_lengths,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["forms_of_argument", "forms_of_main_argument"]

_FORMS_OF_LATER_LAYERS = 6


def forms_of_main_argument(model: nn.Module, first: nn.Module, name: str) -> Iterator[Form]:
    """Forms of the first argument, the most likely first."""
    yield from forms_of_name(model, name)
    if name == "sample" or (name == "hidden_states" and attribute(model, "sample_size", "sample_height")):
        yield from _latents(model)
    elif name == "hidden_states" and (width := attribute(model, "in_channels")):
        yield Form(text="latents", dims=(None, width))
    yield from forms_of_layer(model, first, name)
    for layer in first_layers(model):  # the first registered layer may be that of another argument
        if type(layer) is not type(first):
            yield from itertools.islice(forms_of_layer(model, layer, name), _FORMS_OF_LATER_LAYERS)
    for width in (*rare_widths(model)[:_FORMS_OF_LATER_LAYERS], *concatenated_widths(model)):
        yield Form(text="numbers of a sequence", dims=(None, width))
        yield Form(text="numbers", dims=(width,))


def forms_of_layer(  # noqa: C901, PLR0912 - one form per layer
    model: nn.Module, first: nn.Module, name: str
) -> Iterator[Form]:
    """Forms that the first layer accepts."""
    channels = int(getattr(first, "in_channels", 0) or 0)
    if isinstance(first, nn.Embedding):
        single = Form(text="ids", dims=(), dtype=torch.long)
        yield from (single, tokens_form("tokens")) if SINGLE_IDS.match(name) else (tokens_form("tokens"), single)
        for count in list_lengths(model):
            yield Form(text=f"{count} categories", dims=(count,), dtype=torch.long, values="zeros")
        for length in fixed_lengths(model):
            yield Form(text=f"{length} tokens", dims=(length,), dtype=torch.long)
        yield from rows_of_numbers(model)
    elif isinstance(first, nn.Conv2d):
        colors = (channels,) if channels <= 4 else (channels, 3, 1)
        for size, color in itertools.product(image_sizes(model), colors):
            yield image_form(color, size, size)
        yield from (Form(text="numbers of a sequence", dims=(None, width)) for width in FEATURES)
        yield from (Form(text="sound", dims=(n, length)) for n in (2, 1) for length in AUDIO_LENGTHS)
        yield from (Form(text="sound", dims=(length,)) for length in AUDIO_LENGTHS)
    elif isinstance(first, nn.ConvTranspose2d):
        yield from (image_form(channels, size, size) for size in (1, 4, 8, 16, 32))
    elif isinstance(first, nn.Conv1d):
        yield Form(text="numbers", dims=(channels, None))
        for length in fixed_lengths(model):
            yield from (Form(text="numbers", dims=(channels, length * stride)) for stride in (1, 2, 4))
        yield Form(text="numbers", dims=(channels, 1024))
        yield Form(text="numbers of a sequence", dims=(None, channels))
        yield from (
            Form(text="sound", dims=(n, length)) for n in dict.fromkeys((channels, 1)) for length in AUDIO_LENGTHS
        )
        yield from (Form(text="sound", dims=(length,)) for length in AUDIO_LENGTHS)
    elif isinstance(first, nn.Conv3d):
        cubes = [image_form(channels, size, size, size) for size in (*attribute_sizes(model), 96, 32)]
        videos = [video_form(channels, frames, size) for frames, size in ((16, 112), (16, 224), (8, 32))]
        yield from (*videos, *cubes) if channels == 3 else (*cubes, *videos)
    else:
        width = input_width(first)
        rows = Form(text="numbers", dims=(width,))
        sequence = Form(text="numbers of a sequence", dims=(None, width))
        images = [image_form(colors, size, size) for size in image_sizes(model)[:5] for colors in (3, 1)]
        attends = any(isinstance(module, nn.RNNBase | nn.MultiheadAttention) for module in model.modules())
        attends = attends or bool(table_lengths(model))
        if name in IMAGES:
            yield from images
        yield from (sequence, rows) if attends else (rows, sequence)
        yield from rows_of_numbers(model)
        for length in fixed_lengths(model):
            yield Form(text=f"{length} rows of numbers", dims=(length, width))
        if name not in IMAGES:
            yield from images
        yield from (video_form(3, 16, size) for size in (128, 112, 224))
        yield from (
            Form(text=f"images of {n} x {n}, colors last", dims=(n, n, colors)) for n in (224, 32) for colors in (3, 1)
        )
        yield from (Form(text="sound", dims=(length,)) for length in AUDIO_LENGTHS)
        yield tokens_form("tokens")


def forms_of_name(model: nn.Module, name: str) -> Iterator[Form]:  # noqa: C901 - one form per meaning
    """Forms of arguments whose names have one usual meaning."""
    if name in TOKENS:
        yield tokens_form("tokens")
    elif name in COORDINATES:
        yield Form(text="coordinates", dims=(None, 3))
    elif "categ" in name or name.endswith("_cat"):
        columns = attribute(model, "num_categories", "n_categories", "cat_dims")
        for count in dict.fromkeys((columns or 1, *list_lengths(model))):
            yield Form(text="categories", dims=(count,), dtype=torch.long, values="zeros")
    elif "numer" in name or "contin" in name or name.endswith(("_num", "_cont")):
        columns = attribute(model, "num_continuous", "n_cont_features", "num_numerical")
        yield Form(text="numbers", dims=(columns or 1,))
    elif name in AUDIO:
        width, rows = attribute(model, "num_mel_bins"), attribute(model, "max_length")
        if width and rows:
            yield Form(text=f"a spectrogram of {rows} x {width}", dims=(rows, width))
        channels = attribute(model, "audio_channels") or 1
        yield from (Form(text="sound", dims=(length,)) for length in AUDIO_LENGTHS)
        yield from (
            Form(text="sound", dims=(colors, length))
            for length in AUDIO_LENGTHS
            for colors in dict.fromkeys((channels, 2, 1))
        )
    elif name in {"past_values", "future_values"}:
        length = attribute(model, "context_length" if name == "past_values" else "prediction_length")
        width = attribute(model, "num_input_channels", "input_size")
        if length and width:
            yield Form(text="a time series", dims=(length, width))
    elif name in IMAGES and not isinstance(first_layer(model), nn.Linear | nn.RNNBase):
        frames = attribute(model, "num_frames")
        colors = attribute(model, "num_channels") or 3
        for size in image_sizes(model):
            if frames and name == "pixel_values":
                yield video_form(colors, frames, size, frames_first=True)
            yield image_form(colors, size, size)


def _latents(model: nn.Module) -> Iterator[Form]:
    """Latent images, videos and sounds of a diffusion model."""
    colors = attribute(model, "in_channels") or 4
    height = attribute(model, "sample_size", "sample_height") or 64
    width = attribute(model, "sample_width") or height
    frames = attribute(model, "sample_frames", "num_frames")
    if frames:
        latent_frames = (frames - 1) // (attribute(model, "temporal_compression_ratio") or 1) + 1
        yield Form(
            text=f"latents of {latent_frames} frames of {height} x {width}", dims=(latent_frames, colors, height, width)
        )
        yield Form(
            text=f"latents of {latent_frames} frames of {height} x {width}", dims=(colors, latent_frames, height, width)
        )
    elif any(isinstance(module, nn.Conv3d) for module in model.modules()):
        yield Form(text=f"latents of 4 frames of {height} x {width}", dims=(colors, 4, height, width))
    if height > 1024:
        yield Form(text=f"sound of {height} samples", dims=(colors, height))
        return
    yield Form(text=f"latents of {height} x {width}", dims=(colors, height, width))
    yield Form(text="latents", dims=(None, colors))


def rows_of_numbers(model: nn.Module) -> Iterator[Form]:
    """Rows of numbers whose width, and possibly length, are attributes of the model or of its first linear layer."""
    width = attribute(model, *ROW_WIDTHS)
    length = attribute(model, *ROW_LENGTHS)
    if width and length:
        yield Form(text=f"{length} rows of {width} numbers", dims=(length, width))
    linear = next((module for module in model.modules() if isinstance(module, nn.Linear)), None)
    for size in dict.fromkeys((width, getattr(linear, "in_features", None))):
        if size:
            yield Form(text="numbers of a sequence", dims=(None, size))


_WIDTHS = 4
"""Widths of linear layers that an argument of unknown meaning is tried with."""
_READ = 4
"""Forms that the layer accepts which is called with an argument."""
_NOTHING = Form(text="nothing", dims=(), values="none")


def forms_of_argument(  # noqa: C901, PLR0912 - one case per meaning
    model: nn.Module, name: str, main: Form, *, is_language: bool, reader: nn.Module | None = None
) -> list[Form]:
    """Forms of a further argument, the most likely first; every usual one if its name has no usual meaning.

    Parameters
    ----------
    main
        Form of the first argument.
    is_language
        Whether the first layer is an embedding.
    reader
        The layer that is called with the argument, if it is known.
    """
    ids = Form(text="classes", dims=(), dtype=torch.long)
    if name in LABELS:
        values = Form(text="numbers", dims=(1,))
        same = Form(text="numbers", dims=main.dims, dtype=main.dtype)
        is_text = is_language or main.text == "sound"
        options = [tokens_form("labels"), ids, values] if is_text else [ids, tokens_form("labels"), values]
        return [*options, *([] if is_language or not main.dims else [same])]
    if name in MASKS or name.endswith(("_mask", "mask")):
        return list(_masks(main, is_language=is_language))
    if STATES.match(name):
        return [_NOTHING, *_states(model), *_unknown(model, main)]
    if ADJACENCY.match(name):
        return [Form(text="a matrix", dims=(None, None)), Form(text="a matrix", dims=(None, None), leading="none")]
    if name in TIMES:
        return [ids, Form(text="times", dims=()), Form(text="times", dims=(1,))]
    if name in SECOND_TOKENS:
        return [tokens_form("tokens")]
    if name in EDGES:
        return [Form(text="edges", dims=(), dtype=torch.long, leading="edge ends")]
    if name in {"edge_attr", "edge_weight", "edge_features", "edge_type"}:
        return list(_of_edges(model))
    if name == "batch":  # the graph of each node
        graphs = Form(text="graphs of nodes", dims=(), dtype=torch.long, leading="rows", values="zeros")
        return [graphs, *_unknown(model, main)]
    if name.endswith("lengths") or name in {"lens", "input_length"}:
        return [Form(text="lengths", dims=(), dtype=torch.long, values="tokens")]
    if name in {"class_labels", "classes", "class_ids"}:
        return [ids]
    if name == "pooled_projections":
        return [Form(text="numbers", dims=(attribute(model, "pooled_projection_dim") or 768,))]
    if name in {"img_ids", "txt_ids"}:
        tokens = None if name == "img_ids" else CONTEXT_TOKENS
        return [Form(text="positions", dims=(tokens, 3), leading="none")]
    if name in CONTEXTS:
        widths = [value for key in CONTEXT_WIDTHS if isinstance(value := attribute(model, key), int) and value]
        tokens = attribute(model, "max_text_seq_length") or CONTEXT_TOKENS
        return [Form(text="a text's states", dims=(tokens, width)) for width in dict.fromkeys([*widths, 768])]
    usual = [tokens_form("tokens")] if name in TOKENS else list(forms_of_name(model, name))
    if usual:
        return usual
    read = [] if reader is None else list(itertools.islice(forms_of_layer(model, reader, name), _READ))
    return list(dict.fromkeys([*(_integers(model) if INTEGERS.search(name) else []), *read, *_unknown(model, main)]))


def _states(model: nn.Module) -> Iterator[Form]:
    """States of the first recurrent layer, with the batch or the sequence as the second dimension."""
    layer = next((module for module in model.modules() if isinstance(module, nn.RNNBase)), None)
    if layer is not None:
        layers = layer.num_layers * (2 if layer.bidirectional else 1)
        yield Form(text="states", dims=(layers, layer.hidden_size), leading="states")
        yield Form(text="states", dims=(layers, None, layer.hidden_size), leading="none")


def _masks(main: Form, *, is_language: bool) -> Iterator[Form]:
    """A mask of the tokens; none, which most models accept; masks of pairs of tokens."""
    if main.has_sequence or is_language:
        yield Form(text="a mask", dims=(None,), dtype=torch.bool)
    yield _NOTHING
    yield Form(text="a mask", dims=(None, None), leading="none")
    yield Form(text="a mask", dims=(1, None), dtype=torch.bool)
    yield Form(text="a mask", dims=(None, None), dtype=torch.bool)
    yield Form(text="a mask", dims=(1, None, None), dtype=torch.bool)
    if len(main.dims) > 1 and not main.has_sequence:
        yield Form(text="a mask", dims=(1, *main.dims[1:]))
    yield dataclasses.replace(main, text="a mask", dtype=torch.float32, values="any")


def _of_edges(model: nn.Module) -> Iterator[Form]:
    """Features, weights and types of the edges of a graph."""
    width = attribute(model, "edge_dim", "edge_features", "edge_in_channels", "num_edge_features")
    if width:
        yield Form(text="features of edges", dims=(width,), leading="edges")
    yield Form(text="weights of edges", dims=(), leading="edges")
    yield Form(text="types of edges", dims=(), dtype=torch.long, leading="edges", values="zeros")
    yield _NOTHING


def _integers(model: nn.Module) -> list[Form]:
    """Ids: one per sample, one per embedding table, or tokens. The tables of a model may differ in size."""
    tables = sum(isinstance(module, nn.Embedding) for module in model.modules())
    counts = dict.fromkeys(count for count in (tables, tables - 1) if count > 1)
    columns = [Form(text="categories", dims=(count,), dtype=torch.long, values="zeros") for count in counts]
    single = Form(text="ids", dims=(), dtype=torch.long, values="zeros")
    tokens = Form(text="ids", dims=(None,), dtype=torch.long, values="zeros")
    return [*columns, single, tokens] if columns else [single, tokens]


def _unknown(model: nn.Module, main: Form) -> list[Form]:
    """Every usual form of an argument whose name has no usual meaning."""
    same = dataclasses.replace(main, values="any")
    widths = list(dict.fromkeys(module.in_features for module in model.modules() if isinstance(module, nn.Linear)))[
        :_WIDTHS
    ]
    rows = [Form(text="numbers", dims=(width,)) for width in widths]
    sequences = [Form(text="numbers", dims=(None, width)) for width in widths]
    return list(
        dict.fromkeys(
            [same, _NOTHING, *rows[:2], Form(text="numbers", dims=()), *_integers(model), *sequences, *rows[2:]]
        )
    )
