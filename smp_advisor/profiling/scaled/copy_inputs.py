"""Inputs of a copy whose steps fit in the memory and the FLOPs of a copy: if necessary, smaller images or sounds."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from smp_advisor.profiling.fake import fake_copy, fake_inputs, fake_mode
from smp_advisor.profiling.inputs import cast_inputs, filled
from smp_advisor.profiling.step import measure_step

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.profiling.inputs import ExampleInputs
    from smp_advisor.profiling.step import StepMeasure

__all__ = ["Affordable", "affordable_inputs"]

_DIVISORS = (2, 4, 8)
_SHARE_OF_MEMORY = 0.5
"""The remaining memory is for the optimizer and for what kernels allocate."""
_LEAST_SIZE = 32
"""Images are not reduced below this size."""
_LEAST_SAMPLES = 4096
"""The same for sounds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Affordable:
    """Inputs of a copy and its trace with them."""

    example: ExampleInputs
    traced: StepMeasure | None
    """None if the copy could not be traced."""
    failure: str = ""
    """Error of the trace."""
    note: str = ""
    """Sizes before and after, as text; empty if the inputs have their full size."""


def affordable_inputs(
    model: nn.Module,
    example: ExampleInputs,
    *,
    samples: int,
    sequence: int,
    vocab: int,
    dtype: torch.dtype,
    options: Mapping[str, Any],
    memory_bytes: int,
    most_work: int,
) -> Affordable:
    """The largest inputs whose traced step fits; the smallest that the model accepts if none fits.

    Only inferred images, volumes, videos, latents and sounds are reduced, by 2, 4 or 8 in every direction.

    Parameters
    ----------
    samples, sequence
        Samples of a microbatch, and tokens per sample.
    vocab
        Number of valid ids.
    options
        Of `measure_step`.
    memory_bytes
        Limit of the child process.
    most_work
        Limit of `StepMeasure.work` of a microbatch.
    """

    def at(candidate: ExampleInputs, note: str = "") -> Affordable:
        inputs = cast_inputs(filled(candidate.make(samples, sequence), vocab), dtype)
        return Affordable(example=candidate, traced=_traced(model, inputs, dtype, options), note=note)

    def fits(step: StepMeasure | None) -> bool:
        return step is None or (step.peak_bytes <= _SHARE_OF_MEMORY * memory_bytes and step.work <= most_work)

    try:
        best = at(example)
    except Exception as error:  # noqa: BLE001 - a model may raise anything under a trace
        failure = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        return Affordable(example=example, traced=None, failure=failure)
    full = _shape(example.make(samples, sequence))
    for divisor in _DIVISORS if example.is_inferred else ():
        if fits(best.traced):
            break
        candidate = _divided(example, divisor)
        size = _shape(candidate.make(samples, sequence))
        if size != full:
            with contextlib.suppress(Exception):  # a table of positions, for example, fits one size only
                best = at(candidate, f"inputs reduced from {full} to {size} for the memory and the FLOPs of a copy.")
    return best


def _traced(model: nn.Module, inputs: Any, dtype: torch.dtype, options: Mapping[str, Any]) -> StepMeasure:
    mode = fake_mode()
    fake, sample = fake_copy(model, mode, None), fake_inputs(inputs, mode, dtype)
    with mode:
        return measure_step(fake, sample, **options)


def _divided(example: ExampleInputs, divisor: int) -> ExampleInputs:
    """The inputs with smaller images or sounds; labels and masks of their sizes follow."""

    def make(batch: int, sequence: int) -> Any:
        inputs = example.make(batch, sequence)
        # Next to images or volumes, a tensor of fewer dimensions holds features, whose width remains.
        images = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        images = [leaf for leaf in images if leaf.ndim == max(image.ndim for image in images)]
        sizes = {size for leaf in images for size in _sizes(leaf, divisor) if size != sequence}

        def divide(value: Any) -> Any:
            if not isinstance(value, Tensor) or not value.is_meta:
                return value
            first = 2 if value.is_floating_point() and value.ndim > 2 else 1
            shape = [size // divisor if i >= first and size in sizes else size for i, size in enumerate(value.shape)]
            return torch.empty(shape, dtype=value.dtype, device="meta")

        return tree_map(divide, inputs)

    return dataclasses.replace(
        example, make=make, description=example.description.replace(" (inferred)", f", divided by {divisor} (inferred)")
    )


def _sizes(leaf: Tensor, divisor: int) -> list[int]:
    """Heights, widths, depths and lengths in a tensor, after its channels."""
    if not leaf.is_meta:
        return []
    if leaf.ndim == 2:
        return [size for size in leaf.shape[1:] if size % divisor == 0 and size // divisor >= _LEAST_SAMPLES]
    return [size for size in leaf.shape[2:] if size % divisor == 0 and size // divisor >= _LEAST_SIZE]


def _shape(inputs: Any) -> str:
    """Sizes of the first tensor, without the batch."""
    first = next(leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.ndim)
    return " x ".join(f"{size:,}" for size in first.shape[1:])
