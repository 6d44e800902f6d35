"""Making the copy, in the child."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.fake import default_dtype
from smp_advisor.profiling.gpu_kernels import without_initialisation
from smp_advisor.profiling.scaled.reduction import reduced, reductions_between
from smp_advisor.profiling.scaled.result import Reduction
from smp_advisor.profiling.structure import parameter_total, stacks
from smp_advisor.profiling.truncation import kept, truncated

if TYPE_CHECKING:
    from contextlib import ExitStack

    from smp_advisor.profiling.subject import Subject

__all__ = ["Copy", "make_copy", "plain_inputs", "token_count"]

BYTES_PER_PARAMETER = 20
"""Parameter, gradient and Adam's state, in any of the precisions (profiling facts, bytes per parameter)."""
_SHARE_OF_MEMORY = 0.5
"""The rest is for activations, logits and temporaries."""
_MORE_LAYERS = (0, 1, 2)
"""Tried in turn: with a first block of its own kind, such as T5's, two or three layers hold no repetition."""
_MOST_PARAMETERS = 60_000_000
"""A training step of more takes seconds on one core."""


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A model to train here."""

    model: nn.Module
    subject: Subject
    """What builds it again, where it has a configuration."""
    how: str
    reductions: tuple[Reduction, ...]
    blocks: tuple[str, ...]
    """Paths of its repeated blocks."""


def make_copy(subject: Subject, stack: ExitStack, *, memory_bytes: int, dtype: torch.dtype, blocks: int = 2) -> Copy:
    """The smallest copy that keeps the architecture, by configuration or else by truncating repeated blocks.

    Parameters
    ----------
    subject
        A live module is cut in place, which is to be that of a child process.
    stack
        Undoes the cut where it is closed.
    memory_bytes, dtype
        What the copy's training may take, and the type of its parameters.
    blocks
        Repeats that stay, at least.

    Raises
    ------
    ProfileError
        None fits in `memory_bytes`.
    """
    most = min(_MOST_PARAMETERS, int(memory_bytes * _SHARE_OF_MEMORY / BYTES_PER_PARAMETER))
    if subject.model_class is not None:
        return _by_configuration(subject, most, dtype, blocks)
    if subject.module is None:
        raise ProfileError(f"{subject.name} has neither a module nor a configuration to make a copy of.")
    return _by_truncation(subject, subject.module, stack, most, dtype, blocks)


def _by_configuration(subject: Subject, most: int, dtype: torch.dtype, blocks: int) -> Copy:
    config = _configuration(subject, most, blocks)
    scaled = subject.with_config(config)
    torch.manual_seed(0)
    with default_dtype(dtype):
        model = scaled.build(attention="eager")
    return Copy(
        model=model,
        subject=scaled,
        how="by its configuration, randomly initialised",
        reductions=tuple(reductions_between(subject.config, config)),
        blocks=_blocks(model),
    )


def _configuration(subject: Subject, most: int, blocks: int) -> Any:
    """The first configuration that can be built, is small enough and has repeated blocks; else one without."""
    smallest, failure, without_blocks = 0, "", None
    for more in _MORE_LAYERS:
        for config in reduced(subject.config, blocks + more):
            try:
                with torch.device("meta"), without_initialisation():
                    shape = subject.with_config(config).build()
            except Exception as error:  # noqa: BLE001 (configurations check themselves in any way they like)
                failure = failure or f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                continue
            count = parameter_total([shape])
            if count > most:
                smallest = min(smallest or count, count)
            elif stacks(shape):
                return config
            else:
                without_blocks = without_blocks or config
                break
    if without_blocks is not None:
        return without_blocks
    if smallest:
        raise ProfileError(
            f"The smallest copy of {subject.name} has {smallest / 1e6:,.0f} million parameters, and there is memory "
            f"and time for {most / 1e6:,.0f} million: give the scaled copy more memory."
        )
    raise ProfileError(f"No smaller configuration of {subject.name} could be built ({failure}).")


def _by_truncation(
    subject: Subject, model: nn.Module, stack: ExitStack, most: int, dtype: torch.dtype, blocks: int
) -> Copy:
    found = stacks(model)
    places = {one.path: (len(one.names), len(kept(one, blocks))) for one in found}
    stack.enter_context(truncated(model, found, blocks))
    count = parameter_total([model])
    if count > most:
        raise ProfileError(
            f"A few blocks of {subject.name} at full width have {count / 1e6:,.0f} million parameters, and there is "
            f"memory and time for {most / 1e6:,.0f} million; a module without a configuration can only be cut in "
            "depth: give the scaled copy more memory, or pass a narrower module."
        )
    if any(p.device.type not in {"cpu", "meta"} for p in model.parameters()):
        raise ProfileError(
            f"{subject.name} lies on a GPU, where the child process cannot reach it: move it with .cpu()."
        )
    if any(p.is_meta for p in model.parameters()):
        model.to_empty(device="cpu")
        torch.manual_seed(0)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.02) if parameter.ndim > 1 else nn.init.ones_(parameter)
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters()):
        raise ProfileError(f"{subject.name} has lazy layers: call it once on example inputs before it is profiled.")
    cut = [Reduction(path or "blocks", *counts) for path, counts in places.items() if counts[0] != counts[1]]
    return Copy(
        model=model.to(dtype),
        subject=subject,
        how=f"{'by truncating its repeated blocks, at full width' if cut else 'whole'}, with its own weights",
        reductions=tuple(cut),
        blocks=_blocks(model),
    )


def _blocks(model: nn.Module) -> tuple[str, ...]:
    return tuple(path for one in stacks(model) for path in one.paths)


def token_count(copy: Copy) -> int:
    """Tokens, or classes, that the copy's inputs and labels may name."""
    config = copy.subject.config
    for part in (config, getattr(config, "text_config", None)):
        size = getattr(part, "vocab_size", None)
        if isinstance(size, int) and size > 0:
            return size
    # The first table is the tokens'; one of positions comes after it.
    table = next((module for module in copy.model.modules() if isinstance(module, nn.Embedding)), None)
    return table.num_embeddings if table is not None else int(getattr(config, "num_labels", 0) or 2)


def plain_inputs(inputs: Any, dtype: torch.dtype) -> Any:
    """Inputs with their floating-point tensors in the training type."""
    from torch.utils._pytree import tree_map

    def convert(value: Any) -> Any:
        return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    return tree_map(convert, inputs)
