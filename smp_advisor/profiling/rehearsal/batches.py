"""Batches of a rehearsal: the plan's microbatch size where memory and time allow, with the values of the user."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from smp_advisor.profiling.inputs import filled
from smp_advisor.profiling.rehearsal.repeatable import restored_buffers
from smp_advisor.profiling.rehearsal.single_process import by_name, mapped, named_batch
from smp_advisor.profiling.scaled.training import samples_of
from smp_advisor.profiling.step import loss_of

if TYPE_CHECKING:
    from smp_advisor.profiling.example import ExampleInputs
    from smp_advisor.profiling.rehearsal.degrees import Degrees

__all__ = ["BatchSource", "affordable_samples"]

_SECONDS = 20.0
"""Processor time of all passes of a rehearsal."""
_PASSES = 12
"""Forward and backward runs of the entire batch: references, comparisons and ranks."""
_MAX_SAMPLES = 64


@dataclass(frozen=True, kw_only=True)
class BatchSource:
    """Source of batches for any number of samples."""

    example: ExampleInputs
    supplied: Any
    """The user's inputs."""
    sequence: int
    tokens: int
    """Number of valid token ids of the copy."""
    is_reduced: bool
    """Whether the copy may have fewer token ids than the model."""

    @property
    def has_values(self) -> bool:
        """Whether the user supplied tensors with values, which keep their shape."""
        if self.supplied is None or callable(self.supplied):
            return False
        return not any(leaf.is_meta for leaf in tree_leaves(self.supplied) if isinstance(leaf, Tensor))

    def batch(self, samples: int, seed: int) -> dict[str, Any]:
        """A batch by name; the user's samples are repeated, and inferred ones are random."""
        if not self.has_values:
            return named_batch(filled(self.example.make(samples, self.sequence), self.tokens, seed=seed))
        own = (self.supplied,) if isinstance(self.supplied, Tensor) else self.supplied
        own = tree_map_only(
            Tensor, lambda leaf: leaf.detach().cpu(), dict(own) if isinstance(own, Mapping) else tuple(own)
        )
        indices = (torch.arange(samples) + seed * samples) % samples_of(own)
        batch = mapped(lambda rows: rows[indices], own)
        return named_batch(filled(batch, self.tokens) if self.is_reduced else batch)


def affordable_samples(
    model: nn.Module, source: BatchSource, degrees: Degrees, planned: int, memory_bytes: int, minimum: int
) -> int:
    """Samples per microbatch: as planned, or fewer if a step of two samples is too large or too slow."""
    if planned <= minimum:
        return max(planned, 1)
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    batch = source.batch(2, 0)
    begun = time.perf_counter()
    with restored_buffers(model), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss_of(by_name(model, batch)).backward()  # type: ignore[no-untyped-call]
    seconds = (time.perf_counter() - begun) / 2
    model.zero_grad(set_to_none=True)
    total = degrees.data * degrees.microbatches
    by_memory = memory_bytes / 2 / max(sum(saved.values()) / 2 * total * degrees.tensor, 1)
    by_time = _SECONDS / max(seconds * total * _PASSES, 1e-9)
    return max(minimum, min(planned, _MAX_SAMPLES, int(by_memory), int(by_time)))
