"""Example inputs of a model at any size: the usual names of arguments, their shapes and types."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ExampleInputs", "Form", "image_form", "tokens_form", "video_form"]

LABELS = frozenset({"labels", "label", "targets", "target", "y", "lm_labels", "future_values"})
"""Arguments with which a model computes its loss."""
MASKS = frozenset({"mask", "attention_mask", "src_mask", "padding_mask", "key_padding_mask", "pad_mask"})
"""Masks of tokens: true for each of them."""
STATES = re.compile(
    r"^(hidden|hx?|h_?0|hc|state|states|init_?state|prev_?state|initial_?state|cell|c_?0|cx|cache|past\w*|mems|memory_states)$"
)
"""States of recurrent layers and caches, which a training step begins without."""
INTEGERS = re.compile(
    r"(^|_)(ids?|idx|index|indices|codes?|tokens|sparse\w*|cat\w*|users?|items?|species|atoms?|words?|chars)$|^(z|atomic_numbers|atomic_num\w*)$"
)
"""Integers, by their last word."""
SINGLE_IDS = re.compile(r"^(user|item|movie|product|uid|iid|author|track|song|query|doc)(_?idx?)?s?$")
"""Integers of which a sample has one."""
ADJACENCY = re.compile(r"^(adj\w*|a_hat|laplacian|graph)$")
"""Graphs as dense matrices."""
TIMES = frozenset({"t", "time", "times", "timestep", "timesteps", "sigma", "noise_level", "noise_labels", "guidance"})
IMAGES = frozenset({"img", "image", "images", "imgs", "pixel_values", "pixels", "picture", "image1", "image2"})
AUDIO = frozenset(
    {"audio", "raw_audio", "wav", "wavs", "waveform", "waveforms", "mix", "sound", "speech", "input_values"}
)
SECOND_TOKENS = frozenset({"tgt", "trg", "decoder_input_ids", "target_tokens", "tgt_tokens", "tgt_ids"})
TOKENS = frozenset({"tokens", "input_ids", "ids", "idx", "text", "token_ids"})
CONTEXTS = frozenset({"encoder_hidden_states", "context", "cond_tokens", "memory", "encoder_output", "queries"})
COORDINATES = frozenset({"coors", "coords", "coordinates", "positions_3d", "xyz", "pos"})
IMAGE_SIZES = (224, 256, 32, 64, 28, 128, 299, 384)
AUDIO_LENGTHS = (65_536, 16_000, 160_000)
FEATURES = (80, 40, 64, 128)
"""Features of a frame of speech."""
SIZE_NAMES = ("img_size", "image_size", "input_size", "input_resolution", "img_dim", "resolution", "sample_size")
CONTEXT_WIDTHS = (
    "cross_attention_dim", "joint_attention_dim", "caption_channels", "text_embed_dim", "context_dim", "cond_dim",
    "encoder_hidden_size", "queries_dim", "dim",
)  # fmt: skip
ROW_LENGTHS = (
    "lookback_len",
    "input_len",
    "context_length",
    "context_len",
    "num_frames",
    "max_length",
    "window_size",
    "seq_len",
    "input_length",
)
ROW_WIDTHS = (
    "num_variates",
    "num_features",
    "n_features",
    "num_input_channels",
    "num_mel_bins",
    "d_in",
    "n_mels",
    "dim_in",
    "input_dim",
    "in_dim",
    "feature_dim",
    "d_input",
    "enc_in",
)
LENGTH_NAMES = (
    "max_seq_len", "max_seq_length", "max_length", "max_len", "seq_len", "seq_length", "block_size", "context_length",
    "context_size", "n_positions", "max_position_embeddings", "num_positions", "n_ctx",
)  # fmt: skip
CONTEXT_TOKENS = 77
"""Tokens of a text that conditions images: those of CLIP."""
EDGES_PER_NODE = 8
COUNTERS = frozenset({"batch_idx", "batch_index", "batch_nb", "dataloader_idx"})
"""Integers that a training loop counts."""
EDGES = frozenset({"edge_index", "edges"})
"""Pairs of nodes of a graph."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """Shape and type of an argument."""

    text: str
    dims: tuple[int | None, ...]
    """Sizes after the batch; None is the number of tokens."""
    dtype: torch.dtype = torch.float32
    leading: Literal["batch", "rows", "edges", "edge ends", "states", "none"] = "batch"
    """First dimension: samples; all tokens of all samples (the nodes of a graph); edges between these nodes, which may
    follow two ends; layers, which the samples follow; or none of these."""
    values: Literal["any", "tokens", "zeros", "none"] = "any"
    """Values that are no free choice: the number of tokens of each sample, the first category, or no tensor at all."""

    @property
    def has_sequence(self) -> bool:
        """Whether a dimension is the number of tokens."""
        return self.values != "none" and (None in self.dims or self.leading in {"rows", "edges", "edge ends"})

    def tensor(self, batch: int, sequence: int) -> Tensor | None:
        """Tensor on the meta device; lengths and categories have their values. None if no tensor is passed."""
        if self.values == "none":
            return None
        edges = batch * sequence * EDGES_PER_NODE
        leading = {
            "batch": (batch,), "rows": (batch * sequence,), "edges": (edges,), "edge ends": (2, edges), "none": (),
            "states": (*self.dims[:1], batch),
        }[self.leading]  # fmt: skip
        dims = self.dims[1:] if self.leading == "states" else self.dims
        shape = tuple(sequence if size is None else size for size in (*leading, *dims))
        if self.leading == "edge ends":  # each node to the following ones, without self-loops
            starts = torch.arange(batch * sequence).repeat_interleave(EDGES_PER_NODE)
            distances = torch.arange(1, EDGES_PER_NODE + 1).repeat(batch * sequence)
            return torch.stack([starts, (starts + distances) % (batch * sequence)])
        if self.values != "any":
            return torch.full(shape, sequence if self.values == "tokens" else 0)
        return torch.empty(shape, dtype=self.dtype, device="meta")


def tokens_form(text: str) -> Form:
    """Ids of tokens."""
    return Form(text=text, dims=(None,), dtype=torch.long)


def image_form(colors: int, *sizes: int) -> Form:
    """Images of two dimensions, or volumes of three."""
    text = " x ".join(map(str, sizes))
    return Form(text=f"images of {text}" if len(sizes) == 2 else f"volumes of {text}", dims=(colors, *sizes))


def video_form(colors: int, frames: int, size: int, *, frames_first: bool = False) -> Form:
    """Frames of square images."""
    dims = (frames, colors, size, size) if frames_first else (colors, frames, size, size)
    return Form(text=f"{frames} frames of {size} x {size}", dims=dims)


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

    @property
    def is_inferred(self) -> bool:
        """Whether the user supplied none of it: only inferred inputs may get other forms and sizes."""
        return self.description.endswith("(inferred)")
