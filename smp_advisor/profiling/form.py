"""Shape and type of an argument of a forward method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from smp_advisor.profiling.argument_names import EDGES_PER_NODE

__all__ = ["Form", "image_form", "tokens_form", "video_form"]


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
