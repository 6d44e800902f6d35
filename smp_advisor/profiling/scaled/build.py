"""Building the scaled copy; runs in the child process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.fake import default_dtype
from smp_advisor.profiling.gpu_kernels import without_initialization
from smp_advisor.profiling.inputs import example_inputs, valid_ids
from smp_advisor.profiling.scaled.experts import experts_of, with_experts
from smp_advisor.profiling.scaled.narrow import narrow_copy
from smp_advisor.profiling.scaled.reduction import reduced, reductions_between
from smp_advisor.profiling.scaled.result import Reduction
from smp_advisor.profiling.scaled.trial import idle_layers
from smp_advisor.profiling.structure import (
    callable_parts,
    named_blocks,
    parameter_total,
    remaining_children,
    stacks,
    ties,
    truncated,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import ExitStack

    from smp_advisor.profiling.profiled_model import ProfiledModel
    from smp_advisor.profiling.structure import Stack

__all__ = ["Copy", "make_copy", "removable", "token_count"]

BYTES_PER_PARAMETER = 20
"""Parameter, gradient and Adam state; upper bound over all precisions."""
_SHARE_OF_MEMORY = 0.5
"""The remaining memory is for activations, logits and temporaries."""
_EXTRA_LAYERS = (0, 1, 2)
"""Tried in turn: if the first block differs, as in T5, two or three layers contain no repetition."""
_MOST_STACKS = 4
"""Stacks that are tried one by one, if not all of them can be cut at once."""
_MOST_PARAMETERS = 240_000_000
"""Parameters of a copy whose few steps of short sequences take one core two minutes."""


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A scaled copy to train on this machine."""

    model: nn.Module
    profiled: ProfiledModel
    """The model with the reduced configuration, if it has one."""
    how: str
    reductions: tuple[Reduction, ...]
    blocks: tuple[str, ...]
    """Paths of the repeated blocks."""
    cut: tuple[Stack, ...] = ()
    """Stacks of the full module from which blocks were removed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Limit:
    """Maximum parameters of a copy, by the memory of the child process or by the work of its steps."""

    memory: int

    @property
    def parameters(self) -> int:
        return min(self.memory, _MOST_PARAMETERS)

    def __str__(self) -> str:
        reason = "available memory (memory_bytes=)" if self.memory <= _MOST_PARAMETERS else "steps of a copy"
        return f"the limit of {self.parameters / 1e6:,.0f} million for the {reason}"


def make_copy(
    profiled: ProfiledModel,
    stack: ExitStack,
    *,
    memory_bytes: int,
    dtype: torch.dtype,
    blocks: int = 2,
    inputs: Any = None,
    most_parameters: int | None = None,
) -> Copy:
    """Build the smallest copy with the same architecture: from a reduced configuration, or else by truncation.

    Parameters
    ----------
    profiled
        A live module is truncated in place, so call this in a child process only.
    stack
        Restores the module when it is closed.
    memory_bytes, dtype
        Memory available to train the copy, and the dtype of its parameters.
    blocks
        Minimum number of remaining repeats.
    inputs
        Example inputs; None infers them.
    most_parameters
        Further limit of the parameters of a copy, by the work of its steps.

    Raises
    ------
    ProfileError
        No copy fits in `memory_bytes`.
    """
    limit = _Limit(memory=int(memory_bytes * _SHARE_OF_MEMORY / BYTES_PER_PARAMETER))
    if most_parameters is not None:
        limit = _Limit(memory=min(limit.memory, most_parameters))
    if profiled.model_class is not None:
        return _by_configuration(profiled, limit, dtype, blocks)
    if profiled.module is None:
        raise ProfileError(f"{profiled.name} has neither a module nor a configuration to copy.")
    return _by_truncation(profiled, profiled.module, stack, limit, dtype, blocks, inputs)


def _by_configuration(profiled: ProfiledModel, limit: _Limit, dtype: torch.dtype, blocks: int) -> Copy:
    config = _configuration(profiled, limit, blocks)
    scaled = profiled.with_config(config)
    torch.manual_seed(0)
    with default_dtype(dtype):
        model = scaled.build(attention="eager")
    return Copy(
        model=model,
        profiled=scaled,
        how="from a reduced configuration, randomly initialized",
        reductions=tuple(reductions_between(profiled.config, config)),
        blocks=_blocks(model),
    )


def _configuration(profiled: ProfiledModel, limit: _Limit, blocks: int) -> Any:
    """The first configuration that builds, is small enough and has repeated blocks; else one without them."""
    smallest, failure, without_blocks = 0, "", None
    for extra_layers in _EXTRA_LAYERS:
        for config in reduced(profiled.config, blocks + extra_layers):
            try:
                with torch.device("meta"), without_initialization():
                    shape = profiled.with_config(config).build()
            except Exception as error:  # noqa: BLE001 (configurations may raise anything)
                failure = failure or f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                continue
            count = parameter_total([shape])
            if count > limit.parameters:
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
            f"The smallest copy of {profiled.name} has {smallest / 1e6:,.0f} million parameters, over {limit}."
        )
    raise ProfileError(f"No smaller configuration of {profiled.name} could be built ({failure}).")


def _by_truncation(
    profiled: ProfiledModel,
    model: nn.Module,
    stack: ExitStack,
    limit: _Limit,
    dtype: torch.dtype,
    blocks: int,
    inputs: Any,
) -> Copy:
    repeated = removable(model, inputs, blocks)
    counts_by_label = {row.label: (len(row.names), len(remaining_children(row, blocks))) for row in repeated}
    with truncated(model, repeated, blocks):
        count = parameter_total([model])
    stack.enter_context(truncated(model, repeated, blocks))
    reductions = _depths(counts_by_label)
    experts = experts_of(model) if count > limit.parameters else None
    if experts is not None and experts.few < experts.number:
        stack.enter_context(with_experts(model, experts, experts.few))
        reductions.append(Reduction("experts", experts.number, experts.few))
        count = parameter_total([model])
    if count > limit.parameters:
        narrowed = narrow_copy(model, limit.parameters, inputs)
        if narrowed is not None:
            return Copy(
                model=narrowed.model.to(dtype),
                profiled=profiled,
                how="a few blocks, narrowed by renaming dimensions",
                reductions=(*reductions, *narrowed.reductions),
                blocks=_blocks(narrowed.model, repeated, blocks),
                cut=tuple(repeated),
            )
    if count > limit.parameters:
        raise ProfileError(
            f"A few blocks of {profiled.name} at full width have {count / 1e6:,.0f} million parameters, over {limit}. "
            "Its dimensions could not be reduced consistently: raise this limit, or pass a narrower module."
        )
    if any(p.device.type not in {"cpu", "meta"} for p in model.parameters()):
        raise ProfileError(f"{profiled.name} is on a GPU, which the child process cannot access: move it with .cpu().")
    if any(p.is_meta for p in model.parameters()):
        shared = ties(model)
        model.to_empty(device="cpu")
        _tie(model, shared)  # which to_empty undoes
        torch.manual_seed(0)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.02) if parameter.ndim > 1 else nn.init.ones_(parameter)
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters()):
        raise ProfileError(f"{profiled.name} has lazy layers: call it once on example inputs before profiling.")
    return Copy(
        model=model.to(dtype),
        profiled=profiled,
        how=f"{'truncated to a few blocks at full width' if reductions else 'full model'}, with its own weights",
        reductions=tuple(reductions),
        blocks=_blocks(model, repeated, blocks),
        cut=tuple(repeated),
    )


def removable(model: nn.Module, inputs: Any, blocks: int = 2) -> list[Stack]:
    """Stacks whose blocks can be removed: none if the forward pass then fails, as with a fixed number of layers."""
    experts = experts_of(model)
    lists = [path for layer in experts.layers for path in layer.lists] if experts else []
    repeated = [row for row in stacks(model) if row.path not in lists]
    if all(len(row.names) <= blocks for row in repeated):
        return repeated
    example = example_inputs(model, inputs)

    def works(rows: Sequence[Stack]) -> bool:
        with truncated(model, rows, blocks):
            idle = idle_layers(model, example)
        # A loop over several lists ends with the shortest one, and leaves layers of the others idle.
        return idle is not None and (not idle or idle <= (idle_layers(model, example) or frozenset()))

    identities = {row: named_blocks(model, row) or row for row in repeated}
    removed = [identities[row] if row.repeats == 1 else row for row in repeated]
    for rows in (removed, list(identities.values())):
        if works(rows):
            return rows
    selected: list[Stack] = []
    for row in sorted(repeated, key=lambda row: -row.parameters)[:_MOST_STACKS]:
        form = next((form for form in dict.fromkeys((row, identities[row])) if works([*selected, form])), None)
        selected += [form] if form is not None and form.repeats > blocks else []
    return selected


def _tie(model: nn.Module, groups: tuple[tuple[str, ...], ...]) -> None:
    """Make the parameters of each group one parameter."""
    for first, *copies in groups:
        parameter = model.get_parameter(first)
        for name in copies:
            path, _, leaf = name.rpartition(".")
            model.get_submodule(path).register_parameter(leaf, parameter)


def _depths(counts_by_label: Mapping[str, tuple[int, int]]) -> list[Reduction]:
    return [Reduction(label, *sizes) for label, sizes in counts_by_label.items() if sizes[0] != sizes[1]]


def _blocks(model: nn.Module, cut: Sequence[Stack] = (), blocks: int = 0) -> tuple[str, ...]:
    """Paths of the repeated blocks; of `cut` stacks with named children, those that remain."""
    paths = [path for row in stacks(model) for path in row.paths]
    paths += [row.paths[i] for row in cut if row.is_named for i in remaining_children(row, blocks)]
    return tuple(dict.fromkeys(part for path in paths for part in callable_parts(model, path)))


def token_count(copy: Copy) -> int:
    """Number of valid token ids or classes in the copy's inputs and labels."""
    config = copy.profiled.config
    for part in (config, getattr(config, "text_config", None)):
        size = getattr(part, "vocab_size", None)
        if isinstance(size, int) and size > 0:
            return size
    if config is None:
        return valid_ids(copy.model)
    # The first embedding is for tokens; one for positions follows it.
    table = next((module for module in copy.model.modules() if isinstance(module, nn.Embedding)), None)
    return table.num_embeddings if table is not None else int(getattr(config, "num_labels", 0) or 2)
